"""Options, time of work in alternating rounds, memory, and tables on stdout and in documents."""

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

NameT = TypeVar("NameT")
ResultT = TypeVar("ResultT")
Rows = Sequence[Sequence[object]]


def parse_options(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Return the command line's options: ``--docs``, and one for each keyword.

    A keyword's value is its default, or (default, help), or (default, help, choices). The type is
    that of the default. A list takes any number of values.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--docs",
        type=Path,
        help="document whose sections with this benchmark's tables are replaced",
    )

    for name, value in defaults.items():
        default, text, *choices = value if isinstance(value, tuple) else (value, "")
        kwargs: dict[str, Any] = {"type": type(default), "choices": choices[0] if choices else None}

        # argparse's store_true takes neither a type nor choices.
        if default is False:
            kwargs = {"action": "store_true"}
        elif isinstance(default, list):
            kwargs |= {"type": type(default[0]), "nargs": "*"}

        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, default=default, help=f"{text} (default: {default})", **kwargs)

    return parser.parse_args()


def timed(work: Callable[[], ResultT]) -> tuple[float, ResultT]:
    """Return the CPU seconds of all threads that ``work`` took, and its result."""
    started_s = time.process_time()
    result = work()
    return time.process_time() - started_s, result


def in_turn(
    works: Mapping[NameT, Callable[[], ResultT]], rounds: int
) -> dict[NameT, list[ResultT]]:
    """Return what every piece of work returned in every round.

    Each round runs all of them, every second round in reverse order, so that a busy machine slows
    all alike.
    """
    results: dict[NameT, list[ResultT]] = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works) if number % 2 == 0 else reversed(list(works)):
            results[name].append(works[name]())

    return results


def median_seconds(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of every piece of work over rounds in turn."""
    runs = in_turn({name: partial(timed, work) for name, work in works.items()}, rounds)
    result: dict[str, float] = {}
    for name, timings in runs.items():
        result[name] = statistics.median(seconds for seconds, _ in timings)

    return result


def medians(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every figure over the repetitions of a measurement."""
    result: dict[str, float] = {}
    for name in figures[0]:
        result[name] = statistics.median(row[name] for row in figures)

    return result


def write_figures(figures: Mapping[str, float], formats: Mapping[str, str]) -> list[str]:
    """Return the figures that ``formats`` names as cells of a table."""
    return [f"{figures[name]:{form}}" for name, form in formats.items()]


def verdict(reached: bool) -> str:
    """Return the word for a target that was reached or missed."""
    return "reached" if reached else "missed"


def restart_peak() -> int:
    """Let this process's peak of resident memory (VmHWM) start again from what is resident now; return that, KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_kb("VmRSS")


def status_kb(field: str, pid: int | str = "self") -> int:
    """Return a figure of ``/proc/<pid>/status``, KiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition(f"{field}:")[2].split()[0])


def size_mb(folder: Path) -> float:
    """Return the size of all files under a folder, MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def markdown_table(header: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table; columns of numbers are aligned to the right."""
    marks: list[str] = []
    for column in zip(*rows, strict=True):
        marks.append("---:" if all(map(_is_number, column)) else "---")

    table = ""
    for line in (header, marks, *rows):
        table += f"| {' | '.join(map(str, line))} |\n"

    return table


def _is_number(cell: object) -> bool:
    return re.fullmatch(r"[+-]?[\d,]+(\.\d+)?[x%]?", str(cell)) is not None


def publish(
    options: argparse.Namespace,
    name: str,
    header: Sequence[str],
    rows: Rows,
    before: str = "",
    after: str = "",
) -> None:
    """Print a table as Markdown between two paragraphs, and put it into section ``name`` of the document."""
    parts = (before, markdown_table(header, rows), after)
    text = "\n\n".join(part.strip() for part in parts if part)
    if options.docs:
        fill_section(options.docs, name, text)
    sys.stdout.write(f"{text}\n\n")
    sys.stdout.flush()


def fill_section(document: Path, name: str, text: str) -> None:
    """Put ``text`` between ``<!-- name -->`` and ``<!-- /name -->`` of a document, or raise ValueError."""
    begin = f"<!-- {name} -->"
    end = f"<!-- /{name} -->"
    content = document.read_text(encoding="utf-8")

    if (
        content.count(begin) != 1
        or content.count(end) != 1
        or content.index(begin) > content.index(end)
    ):
        raise ValueError(f"{document} has no one place for the figures: {begin} ... {end}")

    head = content.partition(begin)[0]
    tail = content.partition(end)[2]
    document.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}", encoding="utf-8")
