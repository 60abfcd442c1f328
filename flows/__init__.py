"""Prefect decides when and where a stage runs, DVC decides whether, the library decides how."""

from pathlib import Path

from deepsearch_rl.core.environment import prepare_environment

ROOT = Path(__file__).resolve().parent.parent

# Before Prefect is imported, which reads these variables
prepare_environment()
