"""The scripted servers of the agent's tests, for reports about replies of a model server."""

from tests.agent.conftest import agent_config, chat_server, mcp_server, searches

__all__ = ["agent_config", "chat_server", "mcp_server", "searches"]
