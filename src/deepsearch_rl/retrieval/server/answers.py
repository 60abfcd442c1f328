"""What a search found, in the form in which it is sent, and a bounded store of such answers.

An answer is written as JSON once, when somebody first asks for that form: a repeated query is then a look-up and a copy
of bytes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from pydantic_core import to_json

from deepsearch_rl.retrieval.row_table import Filter
from deepsearch_rl.retrieval.searcher import Hit

MAX_CACHE_BYTES = 32 * 2**20
"""Size of all kept answers, whatever their number: one client's long answers must not push the memory up."""
_HIT_BYTES = 600
"""What a hit takes beside its texts, roughly."""


class Search(NamedTuple):
    """What is searched for; equal ones have equal answers."""

    query: str
    top_k: int
    where: Filter | None


class Answer:
    """The hits of one search, best first, and what is sent of them."""

    __slots__ = ("_documents", "_scored_documents", "hits")

    def __init__(self, hits: Sequence[Hit]) -> None:
        self.hits = hits
        self._documents: bytes | None = None
        self._scored_documents: bytes | None = None

    @property
    def documents(self) -> bytes:
        """``[document, ...]`` as JSON."""
        if self._documents is None:
            self._documents = b"[%b]" % b",".join(_document(hit) for hit in self.hits)
        return self._documents

    @property
    def scored_documents(self) -> bytes:
        """``[{"document": document, "score": score}, ...]`` as JSON."""
        if self._scored_documents is None:
            written = (b'{"document":%b,"score":%b}' % (_document(hit), to_json(hit.score)) for hit in self.hits)
            self._scored_documents = b"[%b]" % b",".join(written)
        return self._scored_documents

    @property
    def size_bytes(self) -> int:
        """About what the answer takes, both forms written."""
        return sum(_HIT_BYTES + 4 * len(hit.chunk.contents) for hit in self.hits)


class AnswerCache:
    """The answers used last, at most ``max_entries`` of them and ``MAX_CACHE_BYTES`` in all."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._answers: OrderedDict[Search, tuple[Answer, int]] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, search: Search) -> Answer | None:
        """The answer, if it is kept; it then counts as used last."""
        kept = self._answers.get(search)
        if kept is None:
            return None
        self._answers.move_to_end(search)
        return kept[0]

    def put(self, search: Search, answer: Answer) -> None:
        """Keep an answer that is not kept yet, and drop those used longest ago until all fit."""
        size_bytes = answer.size_bytes + len(search.query)
        self._answers[search] = answer, size_bytes
        self._size_bytes += size_bytes
        while len(self._answers) > self._max_entries or self._size_bytes > MAX_CACHE_BYTES:
            _, (_, dropped_bytes) = self._answers.popitem(last=False)
            self._size_bytes -= dropped_bytes


def _document(hit: Hit) -> bytes:
    metadata = hit.chunk.metadata.model_dump(mode="json")
    url = metadata.get("url") or hit.chunk.id  # clients read it from every document, whatever the corpus
    document = {"id": hit.chunk.id, "contents": hit.chunk.contents, "url": url, "metadata": metadata}
    return to_json(document, inf_nan_mode="null")
