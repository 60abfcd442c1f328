"""Predicates that decide which trajectories become training rows."""
