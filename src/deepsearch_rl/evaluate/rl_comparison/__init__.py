"""RL runs side by side."""
