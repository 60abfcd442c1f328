"""Write passages for a model to read.

The text is plain, ``[1] Title`` and the passage below it, because a model that reads escaped JSON
pays for every quote and newline twice and copies the escapes into its answers.
"""

from collections.abc import Iterable
from typing import Protocol

# The text for a model when a search succeeded without a hit
NO_PASSAGES = "No passages found."


class PassageText(Protocol):
    """A chunk, or anything else with a title, a newline and a text."""

    @property
    def contents(self) -> str:
        """Title, newline and text."""
        ...


def format_passages(passages: Iterable[PassageText]) -> str:
    """Write passages, best first, as ``[rank] Title`` and text; a blank line stands between two of them."""
    texts = [f"[{rank}] {passage.contents}" for rank, passage in enumerate(passages, 1)]
    return "\n\n".join(texts) or NO_PASSAGES
