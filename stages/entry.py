"""Command line, timing and errors of every stage.

A stage file reads

    def main(profile: Profile) -> None:
        config = profile.section("chunk", ChunkConfig)
        ...

    if __name__ == "__main__":
        run(main)

and is called as ``python -m stages.chunk PARAMS_FILE [--debug]``. The main of a stage with one run for each model or
start also takes that name, the item: ``python -m stages.rl PARAMS_FILE ITEM`` is DVC's stage ``rl@ITEM``.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from deepsearch_rl.errors import ConfigError, DeepsearchError, full_disk_named
from deepsearch_rl.profile import Profile, load_profile

TIMINGS = Path("work", "timings.jsonl")
"""One line per finished stage run, for `deepsearch summary`; a measurement, so no artifact and not tracked."""


def run(main: Callable[[Profile], None], stage: str | None = None) -> None:
    """Run a stage from its command line; errors end it with status 1 and one paragraph on stderr.

    ``stage`` is its name in the graph, where that is not the program's.
    """
    arguments = _parser(main).parse_args()
    _run(main, stage or Path(sys.argv[0]).stem, arguments)


def run_for_item(main: Callable[[Profile, str], None]) -> None:
    """Run a stage for the item that its command line names; see :func:`run`."""
    parser = _parser(main)
    parser.add_argument("item", help="the model to evaluate, or the start of RL")
    arguments = parser.parse_args()
    stage = f"{Path(sys.argv[0]).stem}@{arguments.item}"
    _run(lambda profile: main(profile, arguments.item), stage, arguments)


def _parser(main: Callable[..., None]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=sys.modules[main.__module__].__doc__)
    parser.add_argument("params", type=Path, help="the profile's params.yaml")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _run(main: Callable[[Profile], None], stage: str, arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    try:
        profile = load_profile(arguments.params)
        _require_hours(profile)
        with full_disk_named("while writing"):
            main(profile)
        _record_run(profile.name, stage, time.monotonic() - started)
    except (DeepsearchError, OSError) as error:
        if arguments.debug:
            traceback.print_exc()
        sys.exit(f"error: {error}")


def _require_hours(profile: Profile) -> None:
    """Raise ConfigError where a GPU profile would take longer than its ``requires.max_hours``.

    The command `deepsearch plan` says so, in a process of its own: its code and slopes are no deps of any stage.
    """
    if profile.values.get("requires", {}).get("gpu_memory_gib"):
        command = [str(Path(sys.executable).with_name("deepsearch")), "plan", profile.name, "--check"]
        plan = subprocess.run(command, capture_output=True, text=True, check=False)
        if plan.returncode:
            raise ConfigError(plan.stderr.strip().removeprefix("error: "))


def _record_run(profile: str, stage: str, seconds: float) -> None:
    peaks_kib = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    timing = {
        "profile": profile,
        "stage": stage,
        "started": round(time.time() - seconds, 1),
        "seconds": round(seconds, 1),
        "peak_mb": round(sum(peaks_kib) / 1024),  # of the stage's own process and of its largest child together
    }
    TIMINGS.parent.mkdir(exist_ok=True)
    with TIMINGS.open("a", encoding="utf-8") as timings:
        timings.write(json.dumps(timing) + "\n")
