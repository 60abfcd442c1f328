"""One thin file per stage of dvc.yaml: params section -> frozen config -> one library call."""

import gc
import sys
from pathlib import Path

import yaml

from deepsearch_rl.core.environment import prepare_environment


def _threads() -> int | None:
    """Return the field ``threads`` of the stage's section, or of ``index``, with which the others search."""
    # `python -m stages.sft params.yaml`; sys.argv has no name of a module that is still looked for
    stages = [word.partition(".")[2] for word in sys.orig_argv if word.startswith("stages.")]
    for word in sys.argv[1:]:
        if stages and word.endswith("params.yaml") and Path(word).is_file():
            params = yaml.load(Path(word).read_text(encoding="utf-8"), yaml.CSafeLoader)
            for section in (params.get(stages[0]), params.get("index")):
                if isinstance(section, dict) and "threads" in section:
                    return section["threads"]
            return 1
    return None


# Before a stage imports any library that reads these variables
prepare_environment(_threads())

# What libraries make while they load stays: a fifth of the loading time goes into looking through
# it for garbage. `run` of core/stage.py collects again.
gc.disable()
