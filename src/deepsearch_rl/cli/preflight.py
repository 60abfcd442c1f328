"""``deepsearch preflight``."""

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.cli.defaults import require_effect
from deepsearch_rl.cli.profile_argument import ProfileName
from deepsearch_rl.core.errors import UnavailableError

# tools/ is in a clone of the project, not in an installed package
CLONE = Path(__file__).resolve().parents[3]


def preflight_command(
    context: typer.Context,
    profile: ProfileName,
    is_listed: Annotated[
        bool, Option("--list", help="Show the phases and what they check, and run none.")
    ] = False,
    only: Annotated[
        str | None, Option(help="Run this phase and those that it needs.", show_default="all")
    ] = None,
    is_kept: Annotated[
        bool, Option("--keep", help="Leave the copy that they ran in, with its logs.")
    ] = False,
) -> None:
    """Try a profile's training path on a small model: what works, and what to do before it costs hours.

    Profiles that train no model, or one that searches in tags, are refused. The results are also in
    work/PROFILE/preflight/report.json. The exit status is 1 if a phase failed. docs/gpu.md says
    what each phase tries.

        deepsearch preflight gpu --list
        deepsearch preflight gpu --only evaluate
    """
    if not (CLONE / "tools").is_dir():
        raise UnavailableError(
            "preflight needs a clone of the project: run .venv/bin/deepsearch there."
        )
    sys.path.append(str(CLONE))
    program = importlib.import_module("tools.preflight.command")
    if is_listed:
        reason = "with --list, which runs no phase; leave one of them out"
        require_effect(context, ["only", "is_kept"], reason)
        program.print_phases(profile)
        return

    outcomes = program.preflight(profile, only, is_kept)
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(1)
