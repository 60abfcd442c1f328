"""`deepsearch preflight`: try a profile's training path on a small model, and say what works and what to do.

Everything runs in ``work/<profile>/preflight/copy``, which is deleted at the end. The results are
in ``work/<profile>/preflight/report.json``.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.cli.shared import ProfileName, print_table
from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.files import write_json
from deepsearch_rl.core.profile import find_profile
from tools import ROOT
from tools.preflight.phases import Outcome, Preflight, chosen, phases_of
from tools.preflight.project import cut_copy

HEADER = ("phase", "result", "seconds", "what to do, or what was measured")


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
    gpus: Annotated[
        int | None,
        Option(min=1, help="Train on so many with veRL.", show_default="the profile's"),
    ] = None,
) -> None:
    """Try a profile's training path on a small model, before a run costs hours.

    Profiles that train no model are refused. Results are also in work/PROFILE/preflight/report.json;
    the exit status is 1 if a phase failed. docs/gpu.md says what each phase tries.

        deepsearch preflight gpu --only evaluate
        deepsearch preflight search_r1 --gpus 1
    """
    if is_listed:
        print_phases(profile)
    elif any(outcome.status == "failed" for outcome in preflight(profile, only, is_kept, gpus)):
        raise typer.Exit(1)


def print_phases(profile: str) -> None:
    """Print the phases of a profile, what they need and what they check; raises as :func:`preflight`."""
    rows: list[tuple[str, str, str]] = []
    for name, needs in phases_of(require_trainable(profile)).items():
        purpose = (getattr(Preflight, name).__doc__ or "").partition("\n")[0].rstrip(".")
        rows.append((name, ", ".join(needs), purpose))

    print_table("", ("phase", "needs", "what it checks"), rows)


def preflight(
    profile: str, only: str | None, is_kept: bool, gpus: int | None = None
) -> list[Outcome]:
    """Run the phases of a profile, or ``only`` one and those that it needs; return how they ended.

    veRL trains on ``gpus``, or on as many as the profile has. Raise UnknownNameError where there is
    no such profile or phase, ConfigError where the profile trains no model.
    """
    os.chdir(ROOT)
    phases = phases_of(require_trainable(profile))
    if only:
        look_up("phase", only, phases)
    folder = Path("work", profile, "preflight")
    project = cut_copy(ROOT, profile, ROOT / folder / "copy", gpus)
    outcomes: dict[str, Outcome] = {}

    try:
        for name in chosen(only, phases):
            outcomes[name] = Preflight(project).run(name, outcomes)
            show(outcomes[name])
    finally:
        if not is_kept:
            project.remove()

    write_json(folder / "report.json", [each.model_dump() for each in outcomes.values()])
    print_table(f"preflight of {profile}", HEADER, list(map(table_row, outcomes.values())))
    return list(outcomes.values())


def require_trainable(profile: str) -> Mapping[str, object]:
    """Return the sections of a profile; raise ConfigError where there is no training path to try."""
    values = find_profile(ROOT, profile).values
    if not {"prepare_model", "rl"} <= values.keys():
        raise ConfigError(
            f"the profile {profile} trains no model by RL, so there is no training path to try."
        )

    return values


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
