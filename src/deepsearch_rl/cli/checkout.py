"""Code of a checkout beside the library: what reads the graph through DVC is no part of an installed package."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from deepsearch_rl.core.errors import UnavailableError

ROOT = Path(__file__).resolve().parents[3]


def checkout_module(name: str) -> ModuleType:
    """Import a module of the checkout whose sources run; raise UnavailableError for an installed package."""
    if not (ROOT / "dvc.yaml").is_file():
        raise UnavailableError(
            "this command reads the graph of a checkout, and this is an installed package: run "
            ".venv/bin/deepsearch of a clone of the project, which `make environment` makes."
        )
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(name)
