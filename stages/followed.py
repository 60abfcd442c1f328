"""Live figures of a training stage: a child process sends its curve to MLflow and TensorBoard while it trains.

The child is `deepsearch live`, which ends with the stage: a few seconds after it at the latest, whatever MLflow does.
Nothing is started for a profile without a section ``track``, or outside of a project.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec

from deepsearch_rl.processes import ProcessGuard
from deepsearch_rl.profile import Profile

ItemP = ParamSpec("ItemP")
RUNNER = Path("scripts", "python")
COMMAND = "from deepsearch_rl.cli import main; main()"
"""Started by this text, in the interpreter that has MLflow: a module that is imported, or started by its name, would be
among the stage's deps, and a change of what sends figures would train every model again."""


def followed(main: Callable[Concatenate[Profile, ItemP], None]) -> Callable[Concatenate[Profile, ItemP], None]:
    """Return the main of a stage with live figures of the curves ``<stage>-<key>`` or ``<stage>-<item>-<key>``."""

    @functools.wraps(main)
    def run(profile: Profile, *item: ItemP.args, **named: ItemP.kwargs) -> None:
        stage = [Path(sys.argv[0]).stem, *map(str, item)]
        with ProcessGuard() as guard:
            if "track" in profile.values and RUNNER.is_file():
                guard.start(follow_command(profile, stage), output=sys.stderr)
            main(profile, *item, **named)

    return run


def follow_command(profile: Profile, stage: list[str]) -> list[str]:
    """Return the call that follows the curves of ``[stage]`` or ``[stage, item]``."""
    describe = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    tags = {"dvc.stage": "@".join(stage), "git.commit": commit, "dvc.experiment": os.environ.get("DVC_EXP_NAME", "")}
    options = [part for name, value in tags.items() if value for part in ("--tag", f"{name}={value}")]
    # Read past profile.value(), which decides what a stage declares: no interpreter changes what is trained.
    core = str(profile.values["python"]["core"])
    return [str(RUNNER), core, "-c", COMMAND, "live", profile.name, "--stage", "-".join(stage), *options]
