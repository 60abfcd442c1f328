"""Prefect decides when and where a stage runs, DVC whether it needs to, the library how."""

import stages.environment  # noqa: F401  before prefect is imported, which reads it
