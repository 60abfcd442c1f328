"""Training rows made from trajectories; tokens and loss mask of each are proved."""
