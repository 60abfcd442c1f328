"""Prefect decides when and where a stage runs, DVC whether it needs to, the library how."""

from deepsearch_rl.core.environment import prepare_environment

# Before prefect is imported, which reads it
prepare_environment()
