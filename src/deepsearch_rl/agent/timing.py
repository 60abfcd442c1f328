"""How long a rollout, its model calls and its searches took.

Trajectories are equal from run to run, so no clock enters them. The :func:`timed` blocks of a task
that starts a :class:`Stopwatch`, and of those that it starts, report to it. Without a stopwatch
nothing is measured.
"""

import hashlib
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

from pydantic import Field

from deepsearch_rl.core.files import parse_record
from deepsearch_rl.core.records import Record, Trajectory


class TimedStep(Record):
    """A model call or a search of a rollout."""

    kind: Literal["model_call", "search"]
    message: int = Field(
        ge=0, description="position in the conversation of the message that the step wrote"
    )
    start_ns: int = Field(ge=0, description="from the rollout's start on")
    duration_ns: int = Field(ge=0)


class RolloutTimes(Record):
    """One line of a file of times, beside the log of the rollouts."""

    question_id: str
    sample: int = Field(ge=0)
    trajectory: str = Field(description="digest of the trajectory that was made in this time")
    start_ns: int = Field(description="since 1970")
    duration_ns: int = Field(ge=0)
    steps: tuple[TimedStep, ...] = Field(description="in the order of their ends")


class Stopwatch:
    """Measures a rollout from now on, in this task and those that it starts."""

    def __init__(self) -> None:
        self.start_ns = time.time_ns()
        self._origin_ns = time.perf_counter_ns()
        self.steps: list[TimedStep] = []
        _STOPWATCH.set(self)

    def elapsed_ns(self) -> int:
        """Return the time since the start."""
        return time.perf_counter_ns() - self._origin_ns

    def stop(self, trajectory: Trajectory) -> RolloutTimes:
        """Return the times of a rollout that ends now."""
        return RolloutTimes(
            question_id=trajectory.question_id,
            sample=trajectory.sample,
            trajectory=trajectory_digest(trajectory),
            start_ns=self.start_ns,
            duration_ns=self.elapsed_ns(),
            steps=tuple(self.steps),
        )


_STOPWATCH: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def timed(kind: Literal["model_call", "search"], message: int) -> Iterator[None]:
    """Report to the task's stopwatch, if there is one, how long the block takes; it also counts if it fails."""
    stopwatch = _STOPWATCH.get()
    start_ns = stopwatch.elapsed_ns() if stopwatch else 0

    try:
        yield
    finally:
        if stopwatch:
            duration_ns = stopwatch.elapsed_ns() - start_ns
            stopwatch.steps.append(
                TimedStep(kind=kind, message=message, start_ns=start_ns, duration_ns=duration_ns)
            )


def trajectory_digest(trajectory: Trajectory) -> str:
    """Return the SHA-256 of a trajectory, as it is written to files."""
    return hashlib.sha256(trajectory.model_dump_json(exclude_none=True).encode()).hexdigest()


def kept_times(profile: str, model: str) -> Path:
    """Return the folder with the times of a model's rollouts, which outlive the logs of their evaluation."""
    return Path("work", profile, "times", model)


def keep_times(logs: Path, profile: str, model: str) -> None:
    """Copy the times of an evaluation's rollouts from its scratch folder to :func:`kept_times`."""
    for times in logs.glob("*/*.times"):
        target = kept_times(profile, model) / times.parent.name / times.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(times, target)


def times_path(log: Path) -> Path:
    """Return the file beside a log with its rollouts' times, a :class:`RolloutTimes` a line; no part of an artifact."""
    return log.with_suffix(".times")


def read_times(logs: Path, trajectories: Collection[str]) -> dict[str, RolloutTimes]:
    """Return the times of rollouts in all logs of an evaluation, by the digest of their trajectory; the latest counts.

    A last line that a kill cut off is left out; raise RecordError where another does not fit.
    """
    times: dict[str, RolloutTimes] = {}
    for path in logs.glob("*/*.times"):
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n") and line.strip():
                    record = parse_record(RolloutTimes, line, path, number)
                    earlier = times.get(record.trajectory, record)
                    if record.trajectory in trajectories and earlier.start_ns <= record.start_ns:
                        times[record.trajectory] = record

    return times
