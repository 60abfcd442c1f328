"""The smoke profile's world with its retrieval server, and an untrained policy."""

from tests.agent.conftest import agent_config, chat_server, mcp_server, searches
from tests.policies import model_folder, policy_folder
from tests.worlds import smoke, world, world_server

__all__ = [
    "agent_config",
    "chat_server",
    "mcp_server",
    "model_folder",
    "policy_folder",
    "searches",
    "smoke",
    "world",
    "world_server",
]
