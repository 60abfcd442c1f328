"""A scripted model server, an agent that asks it, and the time of limits per minute."""

from tests.agent.conftest import agent_config, answer, chat_server, mcp_server, searches
from tests.limit_clock import limit_clock
from tests.policies import policy_folder

__all__ = [
    "agent_config",
    "answer",
    "chat_server",
    "limit_clock",
    "mcp_server",
    "policy_folder",
    "searches",
]
