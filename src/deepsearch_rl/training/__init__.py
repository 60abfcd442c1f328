"""Training stages: pretraining of the tiny base, SFT, merging and reinforcement learning."""
