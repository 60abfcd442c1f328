"""`deepsearch preflight`: try a profile's whole training path on a small model, and say what works and what to do.

    python -m tools.preflight PROFILE PHASE     (a phase in the copy that there is, by `deepsearch preflight`)

Everything runs in ``work/<profile>/preflight/copy``, which is deleted at the end. The results are
``work/<profile>/preflight/report.json`` and ``slopes.json``.
"""

import argparse
import os
import sys
from pathlib import Path

from deepsearch_rl.cli.terminal import print_table
from deepsearch_rl.core.errors import ConfigError, DeepsearchError, look_up
from deepsearch_rl.core.profile import find_profile
from tools import ROOT
from tools.preflight.phases import Preflight, SkippedError
from tools.preflight.project import Project, cut_copy, open_copy
from tools.preflight.runner import (
    Phase,
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


TEACHERS_PROTOCOL = "function_calling"


def folder_of(profile: str) -> Path:
    """Return the folder of a profile's preflight, relative to the project."""
    return Path("work", profile, "preflight")


def print_phases(profile: str) -> None:
    """Print the phases of a profile, what they need, their time-outs and what they check."""
    rows = [
        (phase.name, ", ".join(phase.needs), f"{phase.timeout_s:.0f}", phase.purpose)
        for phase in _phases(profile)
    ]
    print_table("", ("phase", "needs", "seconds at most", "what it checks"), rows)


def preflight(profile: str, only: str | None, jobs: int, is_kept: bool) -> list[PhaseOutcome]:
    """Run the phases of a profile, or ``only`` one and those that it needs; return how they ended.

    Raise UnknownNameError where there is no such profile or phase, ConfigError where the profile
    trains no model, or one that searches in tags.
    """
    os.chdir(ROOT)
    folder = folder_of(profile)
    phases = _phases(profile)
    if only:
        look_up("phase", only, {phase.name: phase for phase in phases})
    project = cut_copy(ROOT, profile, _copy(profile))

    try:
        outcomes = run_phases(chosen_phases(phases, only), jobs, show)
    finally:
        if not is_kept:
            project.remove()

    write_report(folder, outcomes)
    print_table(f"preflight of {profile}", HEADER, [table_row(outcome) for outcome in outcomes])
    return outcomes


def _copy(profile: str) -> Path:
    return ROOT / folder_of(profile) / "copy"


def _phases(profile: str) -> list[Phase]:
    """Return the phases of a profile; raise ConfigError for one whose training path cannot be tried."""
    settings = find_profile(ROOT, profile)
    if "sft" not in settings.values:
        raise ConfigError(
            f"the profile {profile} has no stage sft, so it has no training path to try. `make repro "
            f"PROFILE={profile}` runs it, and `deepsearch doctor` says what it needs."
        )
    protocol = settings.value("agent.protocol")
    if protocol != TEACHERS_PROTOCOL:
        raise ConfigError(
            f"the profile {profile} has agent.protocol: {protocol}. The scripted teacher, from whom the preflight's "
            f"small model learns, knows {TEACHERS_PROTOCOL} alone. `deepsearch doctor` says what the profile needs."
        )
    return Preflight(Project(ROOT, settings, _copy(profile))).phases()


def main() -> None:
    """Run a phase, and print its result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile")
    parser.add_argument("phase")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    try:
        result = run_in_copy(folder_of(arguments.profile), arguments.phase)
    except DeepsearchError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(f"{result.model_dump_json()}\n")


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
