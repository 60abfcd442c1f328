"""The curve of a training run while it is trained: every step with its metrics and the time of day.

    work/<profile>/curves/<stage>-<key>.jsonl     named as the run's scratch folder, by a digest of all its inputs

Training logs are equal from run to run, so no clock enters them. A curve is a measurement: it is appended to, outlives
a kill, and a resumed run goes on in it. ``tracking/`` sends it to MLflow. Where nobody asks for a curve
(:func:`recorded_curve`), nothing is written; where it cannot be written, training goes on without it.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from deepsearch_rl.files import AppendLog
from deepsearch_rl.records import Record

CURVES = "curves"
_LOG = logging.getLogger(__name__)


class CurveLine(Record):
    """A step, or the end of a run; a step after the end FINISHED is the first of another run."""

    time_ms: int = Field(ge=0, description="since 1970")
    step: int | None = Field(default=None, ge=0, description="None at the end of a run")
    metrics: dict[str, float | None] = Field(default={}, description="None where the value is no number")
    end: Literal["FINISHED", "FAILED"] | None = None


@dataclass(slots=True)
class _Curve:
    path: Path
    has_steps: bool = False
    is_warned: bool = False

    def append(self, line: CurveLine) -> None:
        try:
            with AppendLog(self.path) as log:
                log.append(line)
        except OSError as error:
            if not self.is_warned:
                _LOG.warning("training goes on, but its curve %s cannot be written: %s", self.path, error.strerror)
            self.is_warned = True


_CURVE: ContextVar[_Curve | None] = ContextVar("curve", default=None)


def curve_path(work: Path, name: str) -> Path:
    """Return the curve of the run ``name`` (``<stage>-<key>``) in a profile's folder of ``work/``."""
    return work / CURVES / f"{name}.jsonl"


@contextmanager
def recorded_curve(path: Path) -> Iterator[None]:
    """Append the steps that this block records to the curve ``path``, and behind them how the block ended."""
    curve = _Curve(path)
    token, end = _CURVE.set(curve), "FAILED"
    try:
        yield
        end = "FINISHED"
    finally:
        _CURVE.reset(token)
        if curve.has_steps:
            curve.append(CurveLine(time_ms=_now_ms(), end=end))


def record_step(line: Mapping[str, int | float | None]) -> None:
    """Record a line of a training log, its field ``step`` and its metrics, as one of this moment."""
    if curve := _CURVE.get():
        pairs = ((name, value) for name, value in line.items() if value is not None and name != "step")
        metrics: dict[str, float | None] = {name: float(value) for name, value in pairs}
        curve.append(CurveLine(time_ms=_now_ms(), step=int(line["step"] or 0), metrics=metrics))
        curve.has_steps = True


def _now_ms() -> int:
    return int(time.time() * 1000)
