"""Live figures of a training stage: a child process sends its curve to MLflow and TensorBoard while it trains.

The child is `deepsearch live`, which ends with the stage: a few seconds after it at the latest,
whatever MLflow does. Nothing is started for a profile without a section ``track``, or outside of a
project.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepsearch_rl.core.processes import ProcessGuard
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Scratch

RUNNER = Path("tools", "python")
# Started by this text, in the interpreter that has MLflow: a module that is imported, or started
# by its name, would be among the stage's deps, and a change of what sends figures would train
# every model again
COMMAND = "from deepsearch_rl.cli.main import main; main()"


def followed(main: Callable[..., None]) -> Callable[..., None]:
    """Return the main of a stage, whose last parameter is its scratch folder, with live figures of its curve."""

    @functools.wraps(main)
    def run(profile: Profile, *others: Any) -> None:
        scratch: Scratch = others[-1]
        with ProcessGuard() as guard:
            if "track" in profile.values and RUNNER.is_file():
                guard.start(follow_command(profile, scratch), output=sys.stderr)
            main(profile, *others)

    return run


def follow_command(profile: Profile, scratch: Scratch) -> list[str]:
    """Return the call that follows the curves of a stage's program."""
    describe = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    tags = {
        "dvc.stage": scratch.stage,
        "git.commit": commit,
        "dvc.experiment": os.environ.get("DVC_EXP_NAME", ""),
    }
    options: list[str] = []
    for name, value in tags.items():
        if value:
            options += ["--tag", f"{name}={value}"]

    # Of <program>-<digest>
    program = scratch.curve.stem.rpartition("-")[0]
    # Read past profile.value(), which decides what a stage declares: no interpreter changes what is
    # trained.
    core = str(profile.values["python"]["core"])
    return [str(RUNNER), core, "-c", COMMAND, "live", profile.name, "--stage", program, *options]
