"""`deepsearch preflight`: try a profile's training path on a small model, and say what works and what to do.

Everything runs in ``work/<profile>/preflight/copy``, which is deleted at the end. The results are
in ``work/<profile>/preflight/report.json``.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.cli.shared import ProfileName, print_table
from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.files import write_json
from deepsearch_rl.core.profile import find_profile
from tools import ROOT
from tools.preflight.phases import PHASES, Outcome, Preflight, chosen
from tools.preflight.project import cut_copy

HEADER = ("phase", "result", "seconds", "what to do, or what was measured")
TEACHERS_PROTOCOL = "function_calling"


def preflight_command(
    profile: ProfileName,
    is_listed: Annotated[
        bool, Option("--list", help="Show the phases and what they check, and run none.")
    ] = False,
    only: Annotated[
        str | None, Option(help="Run this phase and those that it needs.", show_default="all")
    ] = None,
    is_kept: Annotated[
        bool, Option("--keep", help="Keep the copy they ran in, with its logs.")
    ] = False,
) -> None:
    """Try a profile's training path on a small model, before a run costs hours.

    Profiles that train no model, or whose model searches in tags, are refused. Results are also in
    work/PROFILE/preflight/report.json; the exit status is 1 if a phase failed. docs/gpu.md says
    what each phase tries.

        deepsearch preflight gpu --only evaluate
    """
    if is_listed:
        print_phases(profile)
    elif any(outcome.status == "failed" for outcome in preflight(profile, only, is_kept)):
        raise typer.Exit(1)


def print_phases(profile: str) -> None:
    """Print the phases of a profile, what they need and what they check; raises as :func:`preflight`."""
    require_trainable(profile)
    rows: list[tuple[str, str, str]] = []
    for name, needs in PHASES.items():
        purpose = (getattr(Preflight, name).__doc__ or "").partition("\n")[0].rstrip(".")
        rows.append((name, ", ".join(needs), purpose))

    print_table("", ("phase", "needs", "what it checks"), rows)


def preflight(profile: str, only: str | None, is_kept: bool) -> list[Outcome]:
    """Run the phases of a profile, or ``only`` one and those that it needs; return how they ended.

    Raise UnknownNameError where there is no such profile or phase, ConfigError where the profile
    trains no model, or one that searches in tags.
    """
    os.chdir(ROOT)
    require_trainable(profile)
    if only:
        look_up("phase", only, PHASES)
    folder = Path("work", profile, "preflight")
    project = cut_copy(ROOT, profile, ROOT / folder / "copy")
    outcomes: dict[str, Outcome] = {}

    try:
        for name in chosen(only):
            outcomes[name] = Preflight(project).run(name, outcomes)
            show(outcomes[name])
    finally:
        if not is_kept:
            project.remove()

    write_json(folder / "report.json", [each.model_dump() for each in outcomes.values()])
    print_table(f"preflight of {profile}", HEADER, list(map(table_row, outcomes.values())))
    return list(outcomes.values())


def require_trainable(profile: str) -> None:
    """Raise ConfigError for a profile whose training path cannot be tried."""
    settings = find_profile(ROOT, profile)
    values = settings.values
    if not {"prepare_model", "sft", "rl"} <= values.keys():
        raise ConfigError(
            f"the profile {profile} does not train by SFT and RL, so there is no training path to try."
        )

    protocol = settings.value("agent.protocol")
    if protocol != TEACHERS_PROTOCOL:
        raise ConfigError(
            f"the profile {profile} has agent.protocol: {protocol}. The scripted teacher, from whom the preflight's "
            f"small model learns, knows {TEACHERS_PROTOCOL} alone. `deepsearch doctor` says what the profile needs."
        )


def show(outcome: Outcome) -> None:
    """Write a line when a phase has ended, and what to do where it failed."""
    message = f"\n{outcome.message}" if outcome.status == "failed" else ""
    sys.stderr.write(f"{outcome.phase}: {outcome.status} after {outcome.seconds:.1f} s{message}\n")


def table_row(outcome: Outcome) -> Sequence[str]:
    """Return the cells of a phase under :data:`HEADER`."""
    figures = [f"{name} {value:.3g}" for name, value in outcome.figures.items()]
    return (
        outcome.phase,
        outcome.status,
        f"{outcome.seconds:.1f}",
        outcome.message or ", ".join(figures),
    )
