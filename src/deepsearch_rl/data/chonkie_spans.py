"""chonkie's token and recursive chunkers over our tokenizers.

chonkie's offsets refer to the text that its tokenizer decodes, which many tokenizers change. Here a
token is a piece of the text itself, up to the next token, so that offsets are exact.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from chonkie import RecursiveChunker, TokenChunker
from chonkie.tokenizer import Tokenizer

from deepsearch_rl.data.sentences import Span
from deepsearch_rl.data.token_counts import TokenCounter

# Yields the spans of a text's chunks, without surrounding white space and without blank ones
SpanChunker = Callable[[str], Iterator[Span]]


class PieceTokenizer(Tokenizer):
    """A tokenizer for chonkie whose tokens are pieces of the text."""

    def __init__(self, counter: TokenCounter) -> None:
        super().__init__()
        self._counter = counter

    # Abstract in chonkie
    def __repr__(self) -> str:
        return f"PieceTokenizer({self._counter!r})"

    # chonkie declares ints, but only slices and counts tokens
    def encode(self, text: str) -> list[Any]:
        """Return the pieces of a text; white space before a token belongs to the piece before, or to the first."""
        if not text.strip():
            return []

        starts = [start for start, _ in self._counter.spans(text)]
        bounds = [0, *starts[1:], len(text)]
        return [text[start:end] for start, end in pairwise(bounds)]

    def decode(self, tokens: Sequence[Any]) -> str:
        """Join pieces."""
        return "".join(tokens)

    tokenize = encode

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return sum(1 for _ in self._counter.spans(text))


def span_chunker(name: str, counter: TokenCounter, chunk_size: int, overlap: int) -> SpanChunker:
    """Return one of chonkie's chunkers.

    ``chonkie_token``: every chunk has ``chunk_size`` tokens and repeats the last ``overlap``.
    ``chonkie_recursive`` cuts at paragraphs, else sentences, marks, blanks, tokens; its chunks do
    not overlap.
    """
    chunker: TokenChunker | RecursiveChunker
    if name == "chonkie_token":
        chunker = TokenChunker(
            PieceTokenizer(counter), chunk_size=chunk_size, chunk_overlap=overlap
        )
    else:
        chunker = RecursiveChunker(PieceTokenizer(counter), chunk_size=chunk_size)

    def spans(text: str) -> Iterator[Span]:
        for chunk in chunker.chunk(text):
            start = chunk.start_index + len(chunk.text) - len(chunk.text.lstrip())
            end = chunk.start_index + len(chunk.text.rstrip())
            if start < end:
                yield start, end

    return spans
