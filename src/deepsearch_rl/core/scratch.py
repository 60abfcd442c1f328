"""Scratch folders: what a stage writes while it runs, and from which a killed run of it resumes.

    work/<profile>/scratch/<stage>/<digest>/   of the stage's state (:mod:`deepsearch_rl.core.stage_state`)
    work/<profile>/scratch/<stage>/<digest>/state.json

A run finds its folder by its own state, so a killed run is continued where nothing changed, and
begins anew where anything did: one line says what. After success the folder is removed. What a
killed run left behind, and no state has resumed for :data:`KEPT_DAYS` days, is removed when a stage
of the same name starts; `deepsearch clean` removes it at once.
"""

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import read_record, write_json
from deepsearch_rl.core.stage_state import StageState, differences, summary

SCRATCH = "scratch"
STATE_FILE = "state.json"

# Marks a folder whose inputs changed while it was written: it belongs to no state
CHANGED_FILE = "changed-while-running"

# Of a digest in a folder's name: enough that two states of a stage never meet
DIGITS = 12
KEPT_DAYS = 14.0
DAY_S = 86_400.0
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Scratch:
    """The scratch folder of one run of a stage, and the file for its training curve."""

    stage: str
    path: Path
    curve: Path
    is_kept: bool = field(default=False, init=False)

    def keep(self) -> None:
        """Leave the folder in place after success, for a next program of the stage or for another command."""
        self.is_kept = True

    def mark_changed(self) -> None:
        """Have no run resume from this folder."""
        (self.path / CHANGED_FILE).touch()


def scratch_path(work: Path, state: StageState) -> Path:
    """Return the scratch folder of a state in a profile's folder of ``work/``."""
    return work / SCRATCH / state.stage / state.resumable().digest()[:DIGITS]


@contextmanager
def open_scratch(work: Path, state: StageState, program: str, afresh: bool) -> Iterator[Scratch]:
    """Yield the scratch folder of a run, with what a killed run under the same state left in it.

    Args:
        work: the profile's folder of ``work/``.
        state: the state of the stage at the start of this run.
        program: name of the running program in the name of its curve, ``rl-sft``.
        afresh: whether to begin with an empty folder all the same.
    """
    path = scratch_path(work, state)
    if (path / CHANGED_FILE).exists():
        _LOG.warning("%s starts anew: its inputs changed during the unfinished run", state.stage)
        shutil.rmtree(path)
    elif afresh and path.is_dir():
        _LOG.warning("%s starts anew, because it was forced", state.stage)
        shutil.rmtree(path)
    elif not path.is_dir():
        _say_what_changed(path, state.resumable())

    _remove_old(path)
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / STATE_FILE, state.resumable().model_dump(mode="json"))
    scratch = Scratch(state.stage, path, work / "curves" / f"{program}-{path.name}.jsonl")
    yield scratch
    # Not reached after an error: the next run goes on from what is there
    if not scratch.is_kept:
        # A run that was asked to keep a part of it has moved that away
        shutil.rmtree(path, ignore_errors=True)


def _say_what_changed(path: Path, state: StageState) -> None:
    """Log one line where an earlier run cannot be resumed, because it had another state."""
    others = [other for other in _neighbours(path) if not (other / CHANGED_FILE).exists()]
    for newest in sorted(others, key=_last_written, reverse=True)[:1]:
        # Another version may have written it in another form.
        try:
            before = read_record(newest / STATE_FILE, StageState)
        except ArtifactError:
            return

        changes = summary(differences(before, state))
        _LOG.warning("%s starts anew and does not resume its earlier run: %s", state.stage, changes)


def _remove_old(path: Path) -> None:
    limit = time.time() - KEPT_DAYS * DAY_S
    for other in _neighbours(path):
        if _last_written(other) < limit:
            shutil.rmtree(other, ignore_errors=True)


def _neighbours(path: Path) -> list[Path]:
    return [other for other in path.parent.glob("*") if other.is_dir() and other != path]


def _last_written(folder: Path) -> float:
    """Return the time, in seconds since 1970, at which anything in a folder was last written."""
    return max((file.stat().st_mtime for file in (folder, *folder.rglob("*"))), default=0.0)


def unfinished(work: Path, stages: str = "*") -> list[Path]:
    """Return all scratch folders of a profile, or of its stages whose names fit a pattern, the newest first."""
    folders = filter(Path.is_dir, (work / SCRATCH).glob(f"{stages}/*"))
    return sorted(folders, key=_last_written, reverse=True)
