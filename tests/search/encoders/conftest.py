"""A scripted endpoint, and the time of limits per minute."""

from tests.agent.conftest import chat_server
from tests.limit_clock import limit_clock

__all__ = ["chat_server", "limit_clock"]
