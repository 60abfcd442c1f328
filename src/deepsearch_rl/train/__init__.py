"""SFT, RL, rewards and merging."""
