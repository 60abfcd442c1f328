"""One thin file per stage of dvc.yaml: params section -> frozen config -> one library call."""

import sys

import stages.environment  # noqa: F401  for an interpreter that has no hook, as those of .venvs
from deepsearch_rl.core.library_bars import hide_library_bars

# Before a stage imports any library that has bars
hide_library_bars()

# A stage's program: its libraries are loaded before :func:`deepsearch_rl.core.stage_entry.run`, which
# ends the loading.
if any(word.startswith("stages.") for word in sys.orig_argv):
    from deepsearch_rl.core.left_out import begin_loading, leave_out_package_scan

    begin_loading()
    leave_out_package_scan()

# They load transformers, or NLTK for IFEval, and call none of the modules. Other stages call some of
# them, or load libraries of GPU machines that do.
WITHOUT_UNUSED = ("stages.prepare_model", "stages.ifeval")
if not set(WITHOUT_UNUSED).isdisjoint(sys.orig_argv):
    from deepsearch_rl.core.left_out import UNUSED, leave_out

    leave_out(UNUSED)
