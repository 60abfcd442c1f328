"""veRL on Ray as an RL engine: it owns the loop, and the environment plays the episodes."""
