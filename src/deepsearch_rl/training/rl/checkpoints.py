"""Which checkpoints of a run are kept."""

from pydantic import Field

from deepsearch_rl.records import Record


class KeepConfig(Record):
    """Checkpoints kept beside the best one; each is an adapter with its optimizer, three times the adapter's size."""

    last: int = Field(ge=1, description="of the newest steps")
    every: int | None = Field(ge=1, description="of all multiples of this step, steps / every in all; null: none")


def kept_steps(step: int, best: int, keep: KeepConfig) -> set[int]:
    """Return the steps whose checkpoints are kept after ``step``: at most ``keep.last`` + ``step / keep.every`` + 1."""
    multiples = range(keep.every, step + 1, keep.every) if keep.every else ()
    return {best, *range(max(0, step - keep.last + 1), step + 1), *multiples}
