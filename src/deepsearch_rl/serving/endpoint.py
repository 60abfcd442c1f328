"""What every model server hands out (defined beside the agent, which takes it)."""

from deepsearch_rl.agent.endpoint import Endpoint

__all__ = ["Endpoint"]
