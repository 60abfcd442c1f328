"""Prefect decides when and where a stage runs, DVC whether it needs to, the library how."""

import os
from pathlib import Path

# Read by prefect when it is imported. A user's own setting wins.
_ENVIRONMENT = {
    "PREFECT_HOME": str(Path(__file__).resolve().parent.parent / ".prefect"),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}
for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
