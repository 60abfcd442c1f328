"""The smoke profile's world with its retrieval server, and an untrained policy."""

from tests.policies import policy_folder
from tests.worlds import smoke, world, world_server

__all__ = ["policy_folder", "smoke", "world", "world_server"]
