"""The search agent as an environment that any trainer steps."""
