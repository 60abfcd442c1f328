"""Phases: programs that run as soon as those they need have passed, each under a time-out; the others go on.

A phase's program ends its output with a line of JSON: ``{"status": ..., "message": ..., "figures":
{...}}``.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Literal

import psutil
from pydantic import Field, ValidationError

from deepsearch_rl.core.files import write_json
from deepsearch_rl.core.processes import LAST_LINES, ProcessGuard
from deepsearch_rl.core.records import Record
from tools.preflight.memory import measured_memory

# Figures that have a column in the table
COLUMNS = ("tokens_per_s", "peak_gib", "parity")
# Figures that `deepsearch plan` reads, by its own names for them
SLOPES = ("swift_start_s", "sft_token_s", "serve_start_s", "merge_s", "adapter_merge_s")


class Phase(Record):
    """One check: its program, run after those of the phases that it ``needs``, for ``timeout_s`` at most."""

    name: str
    purpose: str
    command: tuple[str, ...]
    timeout_s: float = Field(gt=0)
    needs: tuple[str, ...] = ()


class PhaseResult(Record):
    """How a phase ended, in its own words; ``message`` says what to do, or why it was skipped."""

    status: Literal["passed", "failed", "skipped"]
    message: str = ""
    figures: Mapping[str, float] = {}


class PhaseOutcome(PhaseResult):
    """How a phase ended, and after how many seconds."""

    phase: str
    seconds: float


def chosen_phases(phases: Sequence[Phase], only: str | None) -> list[Phase]:
    """Return the phase ``only`` and all that it needs, in order; None: all phases."""
    by_name = {phase.name: phase for phase in phases}
    names = set[str]()
    waiting = [only] if only else list(by_name)

    while waiting:
        name = waiting.pop()
        names.add(name)
        waiting += by_name[name].needs

    return [phase for phase in phases if phase.name in names]


def run_phases(
    phases: Sequence[Phase],
    jobs: int = 1,
    on_outcome: Callable[[PhaseOutcome], object] = lambda _: None,
) -> list[PhaseOutcome]:
    """Run the phases, ``jobs`` at once, and return how each ended, in their order.

    ``on_outcome`` gets each outcome as soon as it is known. Every phase stands behind those that it
    needs.
    """
    outcomes: dict[str, PhaseOutcome] = {}
    waiting = list(phases)
    running: set[Future[PhaseOutcome]] = set()

    def keep(outcome: PhaseOutcome) -> None:
        """Note an outcome and tell it."""
        outcomes[outcome.phase] = outcome
        on_outcome(outcome)

    with ThreadPoolExecutor(jobs) as pool, ProcessGuard() as guard:
        while waiting or running:
            for phase in list(waiting):
                if not set(phase.needs) <= outcomes.keys() or len(running) == jobs:
                    continue
                waiting.remove(phase)
                blocked = [name for name in phase.needs if outcomes[name].status != "passed"]

                if blocked:
                    reason = f"needs {', '.join(blocked)}"
                    outcome = PhaseOutcome(
                        phase=phase.name, status="skipped", seconds=0.0, message=reason
                    )
                    keep(outcome)
                else:
                    running.add(pool.submit(run_phase, phase, guard))

            # None is running where all that were left have been skipped
            if running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    keep(future.result())

    return [outcomes[phase.name] for phase in phases]


def run_phase(phase: Phase, guard: ProcessGuard) -> PhaseOutcome:
    """Run one phase under a guard and return how it ended."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = guard.start(phase.command, output=output)
        with measured_memory(process.pid) as samples_gib:
            try:
                process.wait(phase.timeout_s)
            except subprocess.TimeoutExpired:
                kill(process)
                text = f"was not done after {phase.timeout_s:g} s, and was ended with all that it had started."
                result = PhaseResult(status="failed", message=text)
            else:
                output.seek(0)
                result = parse_result(output.read(), process.returncode)

    figures = dict(result.figures)
    # Of a phase that failed, the memory says nothing. One that measured its own keeps it.
    if result.status == "passed":
        figures = {"peak_gib": max(samples_gib), **figures}
    seconds = round(time.monotonic() - started, 1)
    return PhaseOutcome(
        phase=phase.name,
        status=result.status,
        message=result.message,
        figures=figures,
        seconds=seconds,
    )


def kill(process: "subprocess.Popen[str]") -> None:
    """Kill (SIGKILL) the command of a guard's supervisor, which then ends all that the command had started."""
    for command in psutil.Process(process.pid).children():
        command.kill()
    process.wait()


def parse_result(output: str, status: int) -> PhaseResult:
    """Return the result in a program's last line, or a failure with its last lines."""
    lines = output.splitlines()
    try:
        return PhaseResult.model_validate_json(lines[-1] if lines else "")
    except ValidationError:
        message = "\n".join([f"ended with status {status}:", *lines[-LAST_LINES:]])
        return PhaseResult(status="failed", message=message)


def table_row(outcome: PhaseOutcome) -> list[str]:
    """Return the cells of a phase: name, status, seconds, :data:`COLUMNS`, and what to do or what else it measured."""
    columns = [_number(outcome.figures.get(name)) for name in COLUMNS]
    others: list[str] = []
    for name, value in outcome.figures.items():
        if name not in COLUMNS:
            others.append(f"{name} {_number(value)}")

    return [
        outcome.phase,
        outcome.status,
        f"{outcome.seconds:.1f}",
        *columns,
        outcome.message or ", ".join(others),
    ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_report(folder: Path, outcomes: Sequence[PhaseOutcome]) -> None:
    """Write ``report.json``, every outcome, and ``slopes.json``, what `deepsearch plan` reads: ``{name: value}``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[object] = []
    slopes: dict[str, float] = {}
    for outcome in outcomes:
        rows.append(json.loads(outcome.model_dump_json()))
        slopes |= {name: value for name, value in outcome.figures.items() if name in SLOPES}

    write_json(folder / "report.json", rows)
    write_json(folder / "slopes.json", {name: slopes[name] for name in SLOPES if name in slopes})
