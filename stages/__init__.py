"""One thin file per stage of dvc.yaml: params section -> frozen config -> one library call."""

import gc
import sys
from pathlib import Path

import yaml

from deepsearch_rl.core.environment import prepare_environment


def _threads() -> int | None:
    """Return the value ``threads`` of the params file that this program was started with."""
    for word in sys.argv[1:]:
        if word.endswith("params.yaml") and Path(word).is_file():
            return yaml.load(Path(word).read_text(encoding="utf-8"), yaml.CSafeLoader).get(
                "threads"
            )
    return None


# Before a stage imports any library that reads these variables
prepare_environment(_threads())

# What libraries make while they load stays: a fifth of the loading time goes into looking through
# it for garbage. `run` of core/stage.py collects again.
gc.disable()
