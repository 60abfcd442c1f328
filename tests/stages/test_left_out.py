import subprocess
import sys

import pytest

from deepsearch_rl.core.left_out import UNUSED
from stages import WITHOUT_UNUSED
from tests.conftest import ROOT


@pytest.mark.slow
def test_a_stage_that_calls_none_of_the_unused_modules_loads_none() -> None:
    """Of the stages that leave them out, the one that starts soonest."""
    assert "stages.ifeval" in WITHOUT_UNUSED
    assert {"scipy", "sklearn"} <= set(UNUSED)
    command = [sys.executable, "-X", "importtime", "-m", "stages.ifeval", "--help"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    modules = {line.rpartition("|")[2].strip() for line in log.splitlines()}
    assert {"nltk.metrics", "evalscope.api"} <= modules
    # Python logs every name that is asked for; these are asked for by those libraries alone
    assert not {"scipy._lib", "sklearn.utils"} & modules


PROGRAM = """
import gc, importlib.metadata, sys
sys.orig_argv = ["python", "-m", "stages.chunk"]
import stages.chunk
print(gc.isenabled(), type(importlib.metadata.packages_distributions()).__name__)
sys.argv = ["chunk", "--help"]
try:
    stages.chunk.run(stages.chunk.main)
except SystemExit:
    print(gc.isenabled(), gc.get_freeze_count() > 10_000)
"""


def test_a_stage_collects_no_garbage_while_it_loads_and_does_afterwards() -> None:
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    first, *_, last = output.splitlines()
    assert first == "False _Distributions"
    assert last == "True True"
