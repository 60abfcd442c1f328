"""The curve of a training run while it is trained: every step with its metrics and the time of day.

    work/<profile>/curves/<stage>-<key>.jsonl     key: the digest that names the run's scratch folder

Training logs are equal from run to run, so no clock enters them. A curve is a measurement: it is
appended to, outlives a kill, and a resumed run goes on in it. :func:`live_figures` sends it to
MLflow while the stage runs. Outside :func:`recorded_curve` nothing is written; where a curve cannot
be written, training goes on without it.
"""

import functools
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

from pydantic import Field

from deepsearch_rl.core.files import AppendLog, read_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import NonEmpty, OpenRecord, Record
from deepsearch_rl.core.stage import Scratch

CURVES = "curves"
# Ends the name of a metric's standard error
ERROR = "_se"
# Of the normal distribution: 95 % lie within so many standard errors
Z_95 = 1.96
RUNNER = Path("tools", "python")
# How long the child that logs to MLflow may take for the last steps
END_S = 30.0
_LOG = logging.getLogger(__name__)


class TrainingStep(OpenRecord):
    """One line of a ``train_log.jsonl``: a step and its metrics by name; null where a step has no such value."""

    __pydantic_extra__: dict[str, float | None]  # pyright: ignore[reportIncompatibleVariableOverride]

    step: int = Field(ge=0)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that the step has."""
        metrics: dict[str, float] = {}
        for name, value in (self.__pydantic_extra__ or {}).items():
            if value is not None:
                metrics[name] = value

        return metrics

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Return the 95 % normal interval of a mean whose standard error is logged (:func:`standard_error`)."""
        mean = self.metrics.get(metric)
        error = self.metrics.get(metric + ERROR)
        if mean is None or error is None:
            return None
        return (mean - Z_95 * error, mean + Z_95 * error)

    @property
    def dev_f1(self) -> float | None:
        """Mean F1 on the dev questions, where RL measured it."""
        return self.metrics.get("dev_f1")


class Alarm(Record):
    """An alarm that began at a step of a training run, and why."""

    name: NonEmpty
    step: int = Field(ge=0)
    reason: NonEmpty

    @property
    def tag(self) -> tuple[str, str]:
        """Name and value of the alarm as a tag of the run in MLflow."""
        return f"alarm/{self.name}", f"from step {self.step}: {self.reason}"


class CurveLine(Record):
    """A step, or the end of a run; a step after the end FINISHED is the first of another run."""

    time_ms: int = Field(ge=0, description="since 1970")
    step: int | None = Field(default=None, ge=0, description="None at the end of a run")
    metrics: dict[str, float | None] = Field(
        default={}, description="None where the value is no number"
    )
    alarms: tuple[Alarm, ...] = Field(default=(), description="that begin at the step")
    end: Literal["FINISHED", "FAILED"] | None = None


@dataclass(slots=True)
class _Curve:
    path: Path
    is_warned: bool = False

    def append(self, line: CurveLine) -> None:
        """Append a step, or an end where the curve takes one; warn once where it cannot be written."""
        try:
            with AppendLog(self.path) as log:
                if line.end is None or self._takes(line.end):
                    log.append(line)
        except OSError as error:
            if not self.is_warned:
                _LOG.warning(
                    "training goes on, but its curve %s cannot be written: %s",
                    self.path,
                    error.strerror,
                )

            self.is_warned = True

    def _takes(self, end: str) -> bool:
        """Return whether an end says something new: not before any step, after the same end, or after FINISHED."""
        lines = list(read_jsonl(self.path, CurveLine))
        return bool(lines) and lines[-1].end not in (end, "FINISHED")


_CURVE: ContextVar[_Curve | None] = ContextVar("curve", default=None)


def standard_error(metric: str, values: Sequence[float]) -> dict[str, float]:
    """Return the standard error of the mean of independent values by its name in a log; nothing for a single value."""
    return {metric + ERROR: stdev(values) / len(values) ** 0.5} if len(values) > 1 else {}


def curve_path(work: Path, name: str) -> Path:
    """Return the curve of the run ``name`` (``<stage>-<key>``) in a profile's folder of ``work/``."""
    return work / CURVES / f"{name}.jsonl"


@contextmanager
def recorded_curve(path: Path) -> Iterator[None]:
    """Append the steps that this block records to the curve ``path``, and then how the block ended."""
    curve = _Curve(path)
    token = _CURVE.set(curve)
    end = "FAILED"

    try:
        yield
        end = "FINISHED"
    finally:
        _CURVE.reset(token)
        if path.is_file():
            curve.append(CurveLine(time_ms=_now_ms(), end=end))


def record_step(line: Mapping[str, int | float | None], alarms: Sequence[Alarm] = ()) -> None:
    """Record a line of a training log, its field ``step``, its metrics and its new alarms, as one of this moment."""
    curve = _CURVE.get()
    # Nobody asked for a curve
    if curve is None:
        return

    metrics: dict[str, float | None] = {}
    for name, value in line.items():
        if value is not None and name != "step":
            metrics[name] = float(value)

    step = int(line["step"] or 0)
    curve.append(CurveLine(time_ms=_now_ms(), step=step, metrics=metrics, alarms=tuple(alarms)))


def _now_ms() -> int:
    return int(time.time() * 1000)


def followed(main: Callable[..., None]) -> Callable[..., None]:
    """Return the main of a stage, whose last parameter is its scratch folder, with live figures of its curve."""

    @functools.wraps(main)
    def run(profile: Profile, *others: Any) -> None:
        with live_figures(profile, others[-1]):
            main(profile, *others)

    return run


@contextmanager
def live_figures(profile: Profile, scratch: Scratch) -> Iterator[None]:
    """Log to MLflow what this block appends to the curve of a stage.

    A child process, :mod:`deepsearch_rl.track.live` in the interpreter that has MLflow, does it
    and ends with the stage. A profile without a section ``track`` has none.
    """
    if "track" not in profile.values or not RUNNER.is_file():
        yield
        return

    offset = scratch.curve.stat().st_size if scratch.curve.is_file() else 0
    # Read past profile.value(), which decides what a stage declares
    core = str(profile.values["python"]["core"])
    command = [str(RUNNER), core, "-m", "deepsearch_rl.track.live"]
    command += [str(profile.path), scratch.stage, str(scratch.curve), str(offset)]
    # In a session of its own: Ctrl-C ends the stage, and the stage ends its child
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=sys.stderr, start_new_session=True
    )

    try:
        yield
    finally:
        if child.stdin:
            child.stdin.close()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            _LOG.warning(
                "MLflow took longer than %g s for the last steps of the live curve.", END_S
            )
