"""Command line, scratch folder, timing and errors of every stage.

A stage file reads

    def main(profile: Profile) -> None:
        config = profile.section("chunk", ChunkConfig)
        ...

    if __name__ == "__main__":
        run(main)

and is called as ``python -m stages.chunk PARAMS_FILE [--debug] [--keep-scratch]``. Two further
arguments are for the stages whose main has a parameter of that name, in this order:

- ``item``, the model or start of a stage with one run for each: ``python -m stages.rl PARAMS_FILE
  sft`` is DVC's stage ``rl@sft``;
- ``scratch``, a folder for what a killed run resumes from (:mod:`deepsearch_rl.core.scratch`).

A stage that ends well has run from its first to its last line on what DVC records: on the code,
params and data of its start. :class:`StageChangedError` refuses every other end.
"""

import argparse
import inspect
import json
import logging
import os
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from deepsearch_rl.core.errors import (
    ConfigError,
    DeepsearchError,
    EndpointError,
    full_disk_named,
)
from deepsearch_rl.core.installed import require_recorded
from deepsearch_rl.core.left_out import end_loading
from deepsearch_rl.core.own_code import require_deps
from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.core.scratch import open_scratch
from deepsearch_rl.core.stage_state import read_state
from deepsearch_rl.core.unchanged import unchanged

_LOG = logging.getLogger(__name__)

# The folder of the project whose sources run
ROOT = Path(__file__).resolve().parents[3]
# One line per finished stage run, for `deepsearch summary`; a measurement, so no artifact and not
# tracked
TIMINGS = Path("work", "timings.jsonl")
# EX_TEMPFAIL of sysexits.h: a server did not answer, so another attempt can help
OUTSIDE_STATUS = 75
# ``0`` has a stage begin with an empty scratch folder; ``stages/environment.py`` sets it for ``dvc
# repro --force``
RESUME_VARIABLE = "DEEPSEARCH_RESUME"


def run(main: Callable[..., None]) -> None:
    """Run a stage from its command line; errors end it with one paragraph on stderr.

    The status is then 1, or :data:`OUTSIDE_STATUS` where a server did not answer. What the stage has
    loaded until here is not looked through for garbage any more (``stages/__init__.py``).

    The parameters of ``main`` are some of profile, item and scratch.
    """
    end_loading()
    parameters = inspect.signature(main).parameters
    parser = argparse.ArgumentParser(description=sys.modules[main.__module__].__doc__)
    parser.add_argument("params", type=Path, help="the profile's params.yaml")
    if "item" in parameters:
        parser.add_argument("item", help="the model to evaluate, or the start of RL")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument(
        "--keep-scratch", action="store_true", help="leave the scratch folder after success"
    )
    arguments = parser.parse_args()

    program = Path(sys.argv[0]).stem
    item = [arguments.item] if "item" in parameters else []
    name = "@".join([program, *item])
    started = time.monotonic()

    try:
        profile = load_profile(arguments.params)
        _require_hours(profile)
        require_deps(profile)
        with full_disk_named("while writing"):
            _run(main, profile, name, program, item, arguments.keep_scratch)
        _record_run(profile.name, name, time.monotonic() - started)
    except (DeepsearchError, OSError) as error:
        if arguments.debug:
            traceback.print_exc()
        # A server that did not answer may do so later: a flow tries such a stage again
        if not isinstance(error, EndpointError):
            sys.exit(f"error: {error}")
        sys.stderr.write(f"error: {error}\n")
        sys.exit(OUTSIDE_STATUS)


def _run(
    main: Callable[..., None],
    profile: Profile,
    name: str,
    program: str,
    item: list[str],
    is_kept: bool,
) -> None:
    """Call a stage with its item and its scratch folder, and see to it that what it runs on does not change."""
    state = read_state(profile, name, ROOT)
    if state.packages:
        # Other versions would be recorded under the names of these
        require_recorded(ROOT / profile.values["packages"], name, profile.values["python"])
    arguments: list[Any] = [profile, *item]
    has_scratch = "scratch" in inspect.signature(main).parameters

    if not has_scratch:
        with unchanged(profile.path, state, ROOT):
            main(*arguments)
        return

    afresh = os.environ.get(RESUME_VARIABLE) == "0"
    with open_scratch(profile.work, state, "-".join([program, *item]), afresh) as scratch:
        if is_kept:
            scratch.keep()
        with unchanged(profile.path, state, ROOT, scratch):
            main(*arguments, scratch)


def _require_hours(profile: Profile) -> None:
    """Raise ConfigError where a GPU profile would take longer than its ``requires.max_hours``.

    The command `deepsearch plan` says so, in a process of its own: its code and slopes are no deps
    of any stage.
    """
    if profile.values.get("requires", {}).get("gpu_memory_gib"):
        command = [
            str(Path(sys.executable).with_name("deepsearch")),
            "plan",
            profile.name,
            "--check",
        ]
        plan = subprocess.run(command, capture_output=True, text=True, check=False)
        if plan.returncode:
            raise ConfigError(plan.stderr.strip().removeprefix("error: "))


def _record_run(profile: str, stage: str, seconds: float) -> None:
    """Note what a run took; a warning says where that cannot be written, since the stage itself has ended well."""
    own_peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    childrens_peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    timing = {
        "profile": profile,
        "stage": stage,
        "started": round(time.time() - seconds, 1),
        "seconds": round(seconds, 1),
        # Of the stage's own process and of its largest child together
        "peak_mb": round((own_peak_kib + childrens_peak_kib) / 1024),
    }
    line = f"{json.dumps(timing)}\n".encode()
    try:
        TIMINGS.parent.mkdir(exist_ok=True)
        with TIMINGS.open("ab+") as timings:
            if _is_cut_off(timings):
                line = b"\n" + line
            timings.write(line)
    except OSError as error:
        _LOG.warning("the time of %s is not noted in %s: %s", stage, TIMINGS, error.strerror)


def _is_cut_off(file: BinaryIO) -> bool:
    """Say whether a file does not end with its last line, which a full disk or a kill left unfinished."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
