"""The results table of README.md: copied from a profile's report, never written by hand.

    python -m scripts.readme        (`make readme`)

tests/test_readme.py fails where the README and ``reports/tiny`` disagree.
"""

import sys
from pathlib import Path

from deepsearch_rl.errors import DeepsearchError
from deepsearch_rl.evaluation.report.tables import F1Table, markdown
from deepsearch_rl.files import atomic_file, read_record
from scripts.markers import with_part

NAME = "f1_table"
README = Path("README.md")
TABLE = Path("reports", "tiny", "f1_table.json")


def main() -> None:
    """Bring README.md of the working directory up to date with the tiny profile's report."""
    try:
        text = with_part(README.read_text(encoding="utf-8"), NAME, markdown(read_record(TABLE, F1Table)))
    except DeepsearchError as error:
        sys.exit(f"error: {error}")
    with atomic_file(README) as partial:
        partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
