"""One thin file per stage of dvc.yaml: params section -> frozen config -> one library call."""

import os
import sys

import stages.environment  # noqa: F401  for an interpreter that has no hook, as those of .venvs

# Set before a stage imports any library that reads them. A stage shows its progress by
# deepsearch_rl.core.progress, and the libraries' own bars would be written over it.
for _name, _value in {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    # Ms-swift's
    "LOG_LEVEL": "ERROR",
}.items():
    os.environ.setdefault(_name, _value)

# They load transformers, or NLTK for IFEval, and call none of the modules. Other stages call some of
# them, or load libraries of GPU machines that do.
WITHOUT_UNUSED = ("stages.prepare_model", "stages.ifeval")
if not set(WITHOUT_UNUSED).isdisjoint(sys.orig_argv):
    from deepsearch_rl.core.left_out import UNUSED, leave_out

    leave_out(UNUSED)
