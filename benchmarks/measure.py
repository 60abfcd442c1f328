"""Time work in alternating rounds; write tables to stdout, files and documents."""

import argparse
import csv
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def parse_options(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Return the command line's options: ``--docs``, and one for each keyword.

    A keyword's value is its default, or (default, help), or (default, help, choices). The type is that of the default;
    a type as default makes an option that may be left out. A list takes any number of values.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, help="document whose sections with this benchmark's tables are replaced")
    for name, value in defaults.items():
        default, text, *choices = value if isinstance(value, tuple) else (value, "")
        kwargs: dict[str, Any] = {"choices": choices[0]} if choices else {}
        if default is False:
            kwargs["action"] = "store_true"
        elif isinstance(default, list):
            kwargs |= {"type": type(default[0]), "nargs": "*"}
        elif isinstance(default, type):
            kwargs["type"], default = default, None
        else:
            kwargs["type"] = type(default)
        parser.add_argument(
            f"--{name.replace('_', '-')}", default=default, help=f"{text} (default: {default})", **kwargs
        )
    return parser.parse_args()


def timed(work: Callable[[], ResultT], clock: Callable[[], float] = time.process_time) -> tuple[float, ResultT]:
    """Return the seconds that ``work`` took, CPU seconds of all threads by default, and its result."""
    started_s = clock()
    result = work()
    return clock() - started_s, result


def alternate(
    works: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Return the seconds of every piece of work in every round.

    Each round runs all of them, every second round in reverse order, so that a busy machine slows all alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works) if number % 2 == 0 else reversed(works):
            seconds[name].append(timed(works[name], clock)[0])
    return seconds


def medians(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every figure over the repetitions of a measurement."""
    return {name: statistics.median(row[name] for row in figures) for name in figures[0]}


def write_figures(figures: Mapping[str, float], formats: Mapping[str, str]) -> list[str]:
    """Return the figures that ``formats`` names as cells of a table, ``-`` where there is no number."""
    return ["-" if math.isnan(figures[name]) else f"{figures[name]:{form}}" for name, form in formats.items()]


def verdict(reached: bool) -> str:
    """Return the word for a target that was reached or missed."""
    return "reached" if reached else "missed"


@contextmanager
def grown_memory() -> Iterator[list[float]]:
    """Yield a list that gets how far this process's anonymous memory rises above its start while the block runs.

    In MiB; RssAnon is read every 20 ms.
    """
    readings_kb, grown_mb, stop = [status_kb("RssAnon")], list[float](), threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            readings_kb.append(status_kb("RssAnon"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield grown_mb
    finally:
        stop.set()
        thread.join()
    grown_mb.append((max(readings_kb) - readings_kb[0]) / 1024)


def status_kb(field: str, pid: int | str = "self") -> int:
    """Return a figure of ``/proc/<pid>/status``, KiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition(f"{field}:")[2].split()[0])


def size_mb(folder: Path) -> float:
    """Return the size of all files under a folder, MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; columns of numbers are aligned to the right."""
    numeric = [all(_is_number(row[column]) for row in rows) for column in range(len(header))]
    lines = [header, ["---:" if right else "---" for right in numeric], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def _is_number(cell: object) -> bool:
    return str(cell).replace(",", "").rstrip("x%").replace(".", "", 1).lstrip("+-").isdigit()


def publish(
    options: argparse.Namespace,
    name: str,
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    before: str = "",
    after: str = "",
) -> None:
    """Print a table as Markdown between two paragraphs, put it into the document, and both forms into ``--work``."""
    publish_text(
        options, name, "\n".join(filter(None, (before and f"{before}\n", markdown_table(header, rows), after)))
    )
    if getattr(options, "work", None):
        with (options.work / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])


def publish_text(options: argparse.Namespace, name: str, text: str) -> None:
    """Print Markdown, put it into section ``name`` of the document, and write ``<name>.md`` to ``--work``."""
    if getattr(options, "work", None):
        options.work.mkdir(parents=True, exist_ok=True)
        (options.work / f"{name}.md").write_text(text, encoding="utf-8")
    if options.docs:
        fill_section(options.docs, name, text)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def fill_section(document: Path, name: str, text: str) -> None:
    """Put ``text`` between ``<!-- name -->`` and ``<!-- /name -->`` of a document.

    Raises:
        ValueError: the document has no such pair of markers, or several.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    content = document.read_text(encoding="utf-8")
    if content.count(begin) != 1 or content.count(end) != 1 or content.index(begin) > content.index(end):
        raise ValueError(f"{document} has no one place for the figures: {begin} ... {end}")
    head, tail = content.partition(begin)[0], content.partition(end)[2]
    document.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}", encoding="utf-8")
