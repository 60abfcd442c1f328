"""Write passages for a model to read.

The text is plain, ``[1] Title`` and the passage below it, because a model that reads escaped JSON
pays for every quote and newline twice and copies the escapes into its answers.
"""

from collections.abc import Iterable
from typing import Protocol

# The text for a model when a search succeeded without a hit
NO_PASSAGES = "No passages found."


class Found(Protocol):
    """A chunk, or anything else with a title, a newline and a text."""

    @property
    def contents(self) -> str:
        """Title, newline and text."""
        ...


def format_passages(chunks: Iterable[Found]) -> str:
    """Write chunks, best first, as ``[rank] Title`` and text; a blank line stands between two passages."""
    return (
        "\n\n".join(f"[{rank}] {chunk.contents}" for rank, chunk in enumerate(chunks, 1))
        or NO_PASSAGES
    )
