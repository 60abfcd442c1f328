"""Rewards of a rollout."""
