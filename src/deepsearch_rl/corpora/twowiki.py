"""2WikiMultihopQA in FlashRAG's layout (Ho et al. 2020, arXiv 2011.01060).

The rows have HotpotQA's form. Answers carry Wikidata aliases in no particular order: any of them is right.
"""

from collections.abc import Iterator
from pathlib import Path

from deepsearch_rl.corpora import hotpotqa
from deepsearch_rl.records import Question


def read_questions(path: Path) -> Iterator[Question]:
    """Yield the questions of a file; types: compositional, comparison, inference, bridge_comparison."""
    return hotpotqa.read_questions(path)
