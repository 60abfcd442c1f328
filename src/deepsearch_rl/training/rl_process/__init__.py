"""RL as a process of its own, which a watchdog may end and start again, and forks of finished runs."""
