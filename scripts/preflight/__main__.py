"""Try a profile's whole training path on a small model, and say in a table what works and what to do.

    python -m scripts.preflight PROFILE [--list] [--only PHASE] [--keep]          (`make preflight PROFILE=gpu`)

Everything runs in ``work/<profile>/preflight/copy``, which is deleted at the end (``--keep`` leaves it). The results
are ``work/<profile>/preflight/report.json`` and ``slopes.json``. The exit status is 1 where a phase failed.
"""

import argparse
import sys

from deepsearch_rl.commands.terminal import print_table
from deepsearch_rl.errors import DeepsearchError, look_up
from scripts.imports import ROOT
from scripts.preflight.phases import Preflight
from scripts.preflight.project import cut_copy
from scripts.preflight.runner import Outcome, chosen_phases, run_phases, table_row, write_report


def main() -> None:
    """Command line; a failed phase ends it with status 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", help="`smoke`, `gpu` or another folder of profiles/; `tiny`")
    parser.add_argument("--list", action="store_true", help="show the phases and what they check")
    parser.add_argument("--only", metavar="PHASE", help="run this phase and those that it needs")
    parser.add_argument("--keep", action="store_true", help="leave the copy, with its logs, where it is")
    arguments = parser.parse_args()
    try:
        passed = preflight(arguments)
    except DeepsearchError as error:
        sys.exit(f"error: {error}")
    sys.exit(0 if passed else 1)


def preflight(arguments: argparse.Namespace) -> bool:
    """Run what the command line asks for; return whether no phase failed."""
    results = ROOT / "work" / arguments.profile / "preflight"
    project = cut_copy(ROOT, arguments.profile, results / "copy")
    try:
        phases = Preflight(project).phases()
        if arguments.only:
            look_up("phase", arguments.only, {phase.name: phase for phase in phases})
        if arguments.list:
            print_table(
                "",
                ("phase", "needs", "at most", "what it checks"),
                [(phase.name, ", ".join(phase.needs), f"{phase.timeout_s:.0f} s", phase.purpose) for phase in phases],
            )
            return True
        outcomes = run_phases(chosen_phases(phases, arguments.only), show)
        write_report(results, outcomes)
        header = ["phase", "result", "seconds", "tokens/s", "padding", "peak GiB", "parity", "what to do, or measured"]
        print_table(f"preflight of {arguments.profile}", header, [table_row(outcome) for outcome in outcomes])
    finally:
        if not arguments.keep:
            project.remove()
    return all(outcome.status != "failed" for outcome in outcomes)


def show(outcome: Outcome) -> None:
    """Write a line when a phase has ended."""
    sys.stderr.write(f"{outcome.phase}: {outcome.status} after {outcome.seconds:.1f} s\n")


if __name__ == "__main__":
    main()
