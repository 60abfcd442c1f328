"""The results table of README.md: the main figures of a profile's report, never written by hand.

    python -m tools.readme        (`make readme`)

``reports/tiny/f1_table.md`` has more of them. `make lint` fails where README.md shows another
table than this script writes.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.files import atomic_file, read_record
from deepsearch_rl.evaluate.comparisons import Comparison
from deepsearch_rl.evaluate.table_files import score_text, signed
from deepsearch_rl.evaluate.tables import F1Table
from tools.markers import with_part

NAME = "results"
README = Path("README.md")
TABLE = Path("reports", "tiny", "f1_table.json")


def main() -> None:
    """Bring README.md of the working directory up to date with the tiny profile's report."""
    try:
        text = with_part(
            README.read_text(encoding="utf-8"), NAME, part(read_record(TABLE, F1Table))
        )
    except DeepsearchError as error:
        sys.exit(f"error: {error}")

    with atomic_file(README) as partial:
        partial.write_text(text, encoding="utf-8")


def reported(root: Path) -> Iterator[F1Table]:
    """Yield the report of the working tree, and the committed one where git has it.

    A run of the graph rewrites the report of the working tree, and README.md may still show the
    committed one.
    """
    yield read_record(root / TABLE, F1Table)

    command = ["git", "show", f"HEAD:{TABLE}"]
    committed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if committed.returncode == 0:
        yield F1Table.model_validate_json(committed.stdout)


def part(table: F1Table) -> str:
    """Return the table: a line for each question set, sampled and greedy, and a sentence for a model that is left out.

    A model is left out if it answers every question as well as the model that it is compared with:
    it kept its start.
    """
    readers_table = table.for_readers
    models = readers_table.models
    pairs = list(dict.fromkeys((each.model, each.other) for each in readers_table.comparisons))

    head = ["F1", "questions", "constant answer", *models]
    head += [f"{model} - {other}" for model, other in pairs]

    lines = [_line(head), _line(["---"] * len(head))]
    for dataset in readers_table.datasets:
        for kind in ("", "greedy"):
            cells = _cells(readers_table, dataset, kind, models, pairs)
            # Not every set was answered greedily
            if cells:
                lines.append(_line(cells))

    parts = ["\n".join(lines), *table.kept_start_notes]
    return "\n" + "\n\n".join(parts) + "\n"


def _cells(
    table: F1Table, dataset: str, kind: str, models: list[str], pairs: list[tuple[str, str]]
) -> list[str]:
    rows = {row.model: row for row in table.rows_of(dataset) if row.kind == kind}
    if not rows:
        return []

    first = next(iter(rows.values()))
    cells = [first.run_name, f"{first.n} x {first.samples}", score_text(first.constant.f1)]
    cells += [score_text(rows[model].f1) if model in rows else "" for model in models]

    comparisons: dict[tuple[str, str], Comparison] = {}
    for comparison in table.comparisons_on(dataset):
        if comparison.run_name == first.run_name:
            comparisons[comparison.model, comparison.other] = comparison

    cells += [_change(comparisons.get(pair)) for pair in pairs]
    return cells


def _change(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    return f"{signed(comparison.difference)} [{signed(comparison.low)}, {signed(comparison.high)}]"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
