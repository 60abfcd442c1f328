"""How a stage ended under DVC, in a file: what DVC itself tells in the sentences of its output alone."""

from pathlib import Path

from deepsearch_rl.core.files import read_record
from deepsearch_rl.core.records import Record

# Names the file that `flows/dvc` writes an :class:`Outcome` to
OUTCOME_VARIABLE = "DEEPSEARCH_OUTCOME"


class Outcome(Record):
    """What DVC did for a stage; nothing where it is unchanged.

    ``status`` is the exit status of the stage's command where that failed.
    """

    has_run: bool = False
    was_restored: bool = False
    status: int | None = None


def read_outcome(path: Path) -> Outcome:
    """Return what `flows/dvc` wrote; nothing was done where it was killed before it wrote anything."""
    return read_record(path, Outcome) if path.is_file() else Outcome()
