"""Prefect decides when and where a stage runs, DVC decides whether, the library decides how."""

import os
from pathlib import Path

from dotenv import load_dotenv

ROOT = Path(__file__).resolve().parent.parent

# Settings and keys of the user; a variable that the shell has set wins
load_dotenv(ROOT / ".env")

# Nothing phones home
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("DVC_NO_ANALYTICS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# MLflow's job runners take 2 GB of memory, and no run here uses them
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
