"""``deepsearch clean``: removes what killed runs left behind."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from deepsearch_rl.cli.folders import folder_bytes
from deepsearch_rl.cli.profile_argument import in_project
from deepsearch_rl.cli.terminal import print_table
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.profile import Profile, find_profile, profile_names
from deepsearch_rl.core.scratch import DIGITS, unfinished
from deepsearch_rl.core.stage_state import read_state


@dataclass(frozen=True, slots=True)
class Leftover:
    """A folder that can be removed, and why."""

    folder: Path
    reason: str

    @property
    def size_bytes(self) -> int:
        """Size of all its files."""
        return folder_bytes(self.folder)


def clean_command(
    profile: Annotated[
        str | None,
        Argument(
            help="A profile; all where none is named.", show_default=False, callback=in_project
        ),
    ] = None,
    everything: Annotated[
        bool, Option("--all", help="Also what the next run of a stage would resume from.")
    ] = False,
    yes: Annotated[
        bool, Option("--yes", help="Remove it; without this option it is only listed.")
    ] = False,
) -> None:
    """Show, or remove, what killed runs left behind: scratch folders that no stage resumes from.

    A scratch folder that no stage can resume, since code, params or data are other ones now, is
    always listed. Let nothing run meanwhile. Results are in DVC's cache, which this command leaves
    alone.

        deepsearch clean
        deepsearch clean tiny --yes
    """
    leftovers: list[Leftover] = []
    for name in [profile] if profile else profile_names(Path()):
        leftovers += find_leftovers(find_profile(Path(), name), everything)
    show(leftovers, yes)


def show(leftovers: Sequence[Leftover], is_removed: bool) -> None:
    """Print a table of what can be removed with its size, and remove it if ``is_removed``."""
    if not leftovers:
        typer.echo("There is nothing to remove.")
        return

    total_mb = 0.0
    rows: list[list[str]] = []
    for leftover in leftovers:
        size_mb = leftover.size_bytes / 1e6
        total_mb += size_mb
        rows.append([leftover.folder.as_posix(), f"{size_mb:.1f} MB", leftover.reason])

    print_table("", ["folder", "size", "why"], rows)
    # What is removed is seen first
    if not is_removed:
        typer.echo(f"{total_mb:.1f} MB; `--yes` removes them.")
        return

    for leftover in leftovers:
        shutil.rmtree(leftover.folder)
    typer.echo(f"{total_mb:.1f} MB freed.")


def find_leftovers(profile: Profile, everything: bool) -> Iterator[Leftover]:
    """Yield what can be removed of a profile; see :func:`clean_command`."""
    for folder in unfinished(profile.work):
        reason = _why_not_resumable(profile, folder)
        if reason:
            yield Leftover(folder, reason)
        elif everything:
            yield Leftover(folder, "the next run of its stage resumes from it")


def _why_not_resumable(profile: Profile, folder: Path) -> str:
    """Return why no stage resumes from a scratch folder; empty if one does."""
    stage = folder.parent.name
    try:
        current = read_state(profile, stage, Path()).resumable().digest()[:DIGITS]
    except DeepsearchError:
        return "the graph has no such stage any more"

    return "" if folder.name == current else "of other code, params or data"
