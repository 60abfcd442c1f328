"""Live figures of a training stage: a child process logs its curve to MLflow while it trains.

The child is :mod:`deepsearch_rl.track.live` in the interpreter that has MLflow. It ends with the
stage. A profile without a section ``track`` has none.
"""

import functools
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Scratch

RUNNER = Path("tools", "python")
# How long the child may take for the last steps when training has ended
END_S = 30.0
_LOG = logging.getLogger(__name__)


def followed(main: Callable[..., None]) -> Callable[..., None]:
    """Return the main of a stage, whose last parameter is its scratch folder, with live figures of its curve."""

    @functools.wraps(main)
    def run(profile: Profile, *others: Any) -> None:
        with live_figures(profile, others[-1]):
            main(profile, *others)

    return run


@contextmanager
def live_figures(profile: Profile, scratch: Scratch) -> Iterator[None]:
    """Log to MLflow what this block appends to the curve of a stage."""
    if "track" not in profile.values or not RUNNER.is_file():
        yield
        return

    offset = scratch.curve.stat().st_size if scratch.curve.is_file() else 0
    # Read past profile.value(), which decides what a stage declares
    core = str(profile.values["python"]["core"])
    command = [str(RUNNER), core, "-m", "deepsearch_rl.track.live"]
    command += [str(profile.path), scratch.stage, str(scratch.curve), str(offset)]
    # In a session of its own: Ctrl-C ends the stage, and the stage ends its child
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=sys.stderr, start_new_session=True
    )

    try:
        yield
    finally:
        if child.stdin:
            child.stdin.close()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            _LOG.warning(
                "MLflow took longer than %g s for the last steps of the live curve.", END_S
            )
