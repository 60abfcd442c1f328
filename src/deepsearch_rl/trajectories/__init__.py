"""Trajectories: collected from any agent, filtered by named predicates, converted to training rows."""
