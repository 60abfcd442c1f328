"""Counts over trajectories and results."""
