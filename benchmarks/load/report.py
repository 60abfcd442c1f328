"""Tables of benchmarks: Markdown for documents, CSV for whoever computes on, and a place in a document for both."""

import csv
from collections.abc import Sequence
from pathlib import Path


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers stand right."""
    numeric = [all(_is_number(row[column]) for row in rows) for column in range(len(header))]
    lines = [header, ["---:" if right else "---" for right in numeric], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def _is_number(cell: object) -> bool:
    return str(cell).replace(",", "").rstrip("x%").replace(".", "", 1).lstrip("+-").isdigit()


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """The same as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def fill_section(document: Path, name: str, text: str) -> None:
    """Put ``text`` between ``<!-- name -->`` and ``<!-- /name -->`` of a document.

    Raises:
        ValueError: the document has no such pair of markers, or several.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = (whole := document.read_text(encoding="utf-8")).partition(begin)
    _, found, after = rest.partition(end)
    if not found or whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{document} has no one place for the figures: {begin} ... {end}")
    document.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")
