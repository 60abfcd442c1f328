"""The RL loop, its losses, health checks and process."""
