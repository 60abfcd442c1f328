"""How found chunks are written for a model to read.

The text is plain, ``[1] Title`` and the passage below it, because a model that reads escaped JSON pays for every
quote and newline twice and copies the escapes into its answers.
"""

from collections.abc import Iterable
from typing import Protocol

NO_PASSAGES = "No passages found."
"""What the model reads when a search succeeded and found nothing."""


class Found(Protocol):
    """A chunk, or whatever else holds a title, a newline and a text."""

    @property
    def contents(self) -> str:
        """All of it."""
        ...


def format_passages(chunks: Iterable[Found]) -> str:
    """Write chunks, best first, as ``[rank] Title`` and text; a blank line stands between two passages."""
    return "\n\n".join(f"[{rank}] {chunk.contents}" for rank, chunk in enumerate(chunks, 1)) or NO_PASSAGES
