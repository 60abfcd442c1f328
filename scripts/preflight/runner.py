"""Phases: run in order, each under a time-out; a phase whose needs failed is skipped, the others go on."""

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

from deepsearch_rl.errors import DeepsearchError
from deepsearch_rl.files import write_json
from scripts.preflight.memory import MemoryMeter

Figures = Mapping[str, float]
"""What a phase measured, by name; those of :data:`COLUMNS` have a column in the table."""
COLUMNS = ("tokens_per_s", "padding", "peak_gib", "parity")


class SkippedError(Exception):
    """A phase has nothing to do here; the text says why."""


class _LateError(Exception):
    """A phase was not done in time."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One check: ``run`` returns its figures, or raises DeepsearchError with what to do, or SkippedError.

    It runs after the phases that it ``needs``, and for ``timeout_s`` at most.
    """

    name: str
    run: Callable[[], Figures]
    timeout_s: float
    needs: tuple[str, ...] = ()

    @property
    def purpose(self) -> str:
        """The first line of the function's docstring."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a phase ended; ``message`` says what to do, or why it was skipped."""

    phase: str
    status: Literal["passed", "failed", "skipped"]
    seconds: float
    message: str = ""
    figures: Figures = field(default_factory=dict)


def chosen_phases(phases: Sequence[Phase], only: str | None) -> list[Phase]:
    """Return the phase ``only`` and all that it needs, in order; None: all phases."""
    by_name = {phase.name: phase for phase in phases}
    names, waiting = set[str](), [only] if only else list(by_name)
    while waiting:
        name = waiting.pop()
        names.add(name)
        waiting += by_name[name].needs
    return [phase for phase in phases if phase.name in names]


def run_phases(phases: Sequence[Phase], on_outcome: Callable[[Outcome], object] = lambda _: None) -> list[Outcome]:
    """Run the phases in their order and return how each ended; ``on_outcome`` gets each as soon as it has."""
    outcomes: dict[str, Outcome] = {}
    for phase in phases:
        blocked = [name for name in phase.needs if outcomes[name].status != "passed"]
        outcome = Outcome(phase.name, "skipped", 0.0, f"needs {', '.join(blocked)}") if blocked else _run(phase)
        outcomes[phase.name] = outcome
        on_outcome(outcome)
    return list(outcomes.values())


def _run(phase: Phase) -> Outcome:
    started = time.monotonic()

    def outcome(status: Literal["passed", "failed", "skipped"], message: str = "", figures: Figures = {}) -> Outcome:  # noqa: B006
        return Outcome(phase.name, status, round(time.monotonic() - started, 1), message, figures)

    try:
        with MemoryMeter() as meter, time_limit(phase.timeout_s):
            figures = dict(phase.run())
    except SkippedError as reason:
        return outcome("skipped", str(reason))
    except (_LateError, DeepsearchError, OSError) as error:
        return outcome("failed", str(error))
    return outcome("passed", figures={"peak_gib": meter.peak_gib, **figures})


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the block, wherever it waits, after ``seconds``; works in the main thread only."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise _LateError(f"was not done after {seconds:g} s, and was ended with all that it had started.")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def table_row(outcome: Outcome) -> list[str]:
    """Return the cells of a phase: name, status, seconds, :data:`COLUMNS`, and what to do or what else it measured."""
    shown = [_number(outcome.figures.get(name)) for name in COLUMNS]
    others = ", ".join(f"{name} {_number(value)}" for name, value in outcome.figures.items() if name not in COLUMNS)
    return [outcome.phase, outcome.status, f"{outcome.seconds:.1f}", *shown, outcome.message or others]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_report(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Write ``report.json``, every outcome, and ``slopes.json``, the figures of passed phases as ``phase.figure``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "report.json", json.loads(json.dumps([asdict(outcome) for outcome in outcomes])))
    slopes = {
        f"{outcome.phase}.{name}": value
        for outcome in outcomes
        for name, value in {"seconds": outcome.seconds, **outcome.figures}.items()
        if outcome.status == "passed"
    }
    write_json(folder / "slopes.json", slopes)
