"""Which of SFT's checkpoints goes on: the last, or the best by loss or by rollouts."""
