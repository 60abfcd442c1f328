"""RL with veRL on Ray."""
