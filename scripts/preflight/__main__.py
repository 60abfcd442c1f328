"""Try a profile's whole training path on a small model, and say in a table what works and what to do.

    python -m scripts.preflight PROFILE [--list] [--only PHASE] [--jobs N] [--keep]     (`make preflight PROFILE=gpu`)

Everything runs in ``work/<profile>/preflight/copy``, which is deleted at the end (``--keep`` leaves
it). The results are ``work/<profile>/preflight/report.json`` and ``slopes.json``. The exit status
is 1 where a phase failed.
"""

import argparse
import os
import sys
from pathlib import Path

from deepsearch_rl.commands.terminal import print_table
from deepsearch_rl.core.errors import DeepsearchError, look_up
from deepsearch_rl.core.profile import find_profile
from scripts.imports import ROOT
from scripts.preflight.phases import Preflight, SkippedError
from scripts.preflight.project import Project, cut_copy, open_copy
from scripts.preflight.runner import (
    PhaseOutcome,
    PhaseResult,
    chosen_phases,
    run_phases,
    table_row,
    write_report,
)

HEADER = (
    "phase",
    "result",
    "seconds",
    "tokens/s",
    "peak GiB",
    "parity",
    "what to do, or what was measured",
)


def main() -> None:
    """Command line; a failed phase ends it with status 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", help="a profile: tiny, or a folder of profiles/")
    parser.add_argument("--list", action="store_true", help="show the phases and what they check")
    parser.add_argument("--only", metavar="PHASE", help="run this phase and those that it needs")
    parser.add_argument("--jobs", type=int, default=1, help="phases at once; 1 measures best")
    parser.add_argument(
        "--keep", action="store_true", help="leave the copy, with its logs, where it is"
    )
    # Run one phase in the copy that there is
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    folder = Path("work", arguments.profile, "preflight")

    try:
        if arguments.phase:
            sys.stdout.write(f"{run_in_copy(folder, arguments.phase).model_dump_json()}\n")
            return

        outcomes = preflight(arguments, folder)
    except DeepsearchError as error:
        sys.exit(f"error: {error}")

    sys.exit(any(outcome.status == "failed" for outcome in outcomes))


def preflight(arguments: argparse.Namespace, folder: Path) -> list[PhaseOutcome]:
    """Do what the command line asks for; return how the phases ended."""
    copy = ROOT / folder / "copy"
    phases = Preflight(Project(ROOT, find_profile(ROOT, arguments.profile), copy)).phases()
    if arguments.only:
        look_up("phase", arguments.only, {phase.name: phase for phase in phases})
    if arguments.list:
        rows = [
            (phase.name, ", ".join(phase.needs), f"{phase.timeout_s:.0f}", phase.purpose)
            for phase in phases
        ]
        print_table("", ("phase", "needs", "seconds at most", "what it checks"), rows)
        return []

    project = cut_copy(ROOT, arguments.profile, copy)

    try:
        outcomes = run_phases(chosen_phases(phases, arguments.only), arguments.jobs, show)
    finally:
        if not arguments.keep:
            project.remove()

    write_report(folder, outcomes)
    print_table(
        f"preflight of {arguments.profile}", HEADER, [table_row(outcome) for outcome in outcomes]
    )
    return outcomes


def run_in_copy(folder: Path, phase: str) -> PhaseResult:
    """Run one phase in the copy that there is and return how it ended."""
    try:
        figures = getattr(Preflight(open_copy(ROOT, ROOT / folder / "copy")), phase)()
    except SkippedError as reason:
        return PhaseResult(status="skipped", message=str(reason))
    except (DeepsearchError, OSError) as error:
        return PhaseResult(status="failed", message=str(error))

    return PhaseResult(status="passed", figures=figures)


def show(outcome: PhaseOutcome) -> None:
    """Write a line when a phase has ended, and what to do where it failed."""
    message = f"\n{outcome.message}" if outcome.status == "failed" else ""
    sys.stderr.write(f"{outcome.phase}: {outcome.status} after {outcome.seconds:.1f} s{message}\n")


if __name__ == "__main__":
    main()
