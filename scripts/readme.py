"""The results table of README.md: copied from a profile's report, never written by hand.

    python -m scripts.readme        (`make readme`)

The table stands between two HTML comments, which no renderer shows. tests/test_readme.py fails where the README and
``reports/tiny`` disagree.
"""

import sys
from pathlib import Path

from deepsearch_rl.errors import ArtifactError, DeepsearchError
from deepsearch_rl.evaluation.report.tables import F1Table, markdown
from deepsearch_rl.files import atomic_file, read_record

BEGIN = "<!-- f1_table -->"
END = "<!-- /f1_table -->"
README = Path("README.md")
TABLE = Path("reports", "tiny", "f1_table.json")


def with_table(readme: str, table: F1Table) -> str:
    """Return the text of a README with everything between its markers replaced by ``table``.

    Raises:
        ArtifactError: the two markers are not in the text, once each and in order.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(END) < readme.index(BEGIN):
        raise ArtifactError(f"the README needs the lines {BEGIN} and {END}, once each, where its results table stands.")
    before, _, rest = readme.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{markdown(table)}{END}{after}"


def main() -> None:
    """Bring README.md of the working directory up to date with the tiny profile's report."""
    try:
        text = with_table(README.read_text(encoding="utf-8"), read_record(TABLE, F1Table))
    except DeepsearchError as error:
        sys.exit(f"error: {error}")
    with atomic_file(README) as partial:
        partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
