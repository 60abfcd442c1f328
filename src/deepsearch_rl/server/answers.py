"""Search answers as they are sent, and a bounded cache of them.

A document is serialised once, when it is found, so that a cached answer costs a look-up and a copy.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit

# Of all cached answers together: long answers must not fill the memory
MAX_CACHE_BYTES = 64 * 2**20


class SearchKey(NamedTuple):
    """A search; equal keys have equal answers."""

    query: str
    top_k: int
    where: Filter | None


class SentPassage(NamedTuple):
    """A hit as clients get it; ``document`` is its JSON."""

    id: str
    contents: str
    score: float
    document: bytes

    @property
    def metadata(self) -> JsonValue:
        """The chunk's metadata."""
        return from_json(self.document)["metadata"]


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The passages of one search, best first."""

    passages: tuple[SentPassage, ...]

    @classmethod
    def of(cls, hits: Iterable[Hit]) -> Self:
        """Serialise hits; raise ValueError for a score that JSON cannot express."""
        passages: list[SentPassage] = []
        for hit in hits:
            chunk = hit.chunk
            if not math.isfinite(hit.score):
                raise ValueError(f"the search gave passage {chunk.id!r} the score {hit.score}")

            metadata = chunk.metadata.model_dump(mode="json")
            document = {
                "id": chunk.id,
                "contents": chunk.contents,
                # RLinf's client reads it from every document
                "url": metadata.get("url") or chunk.id,
                "metadata": metadata,
            }
            json = to_json(document, inf_nan_mode="null")
            passages.append(SentPassage(chunk.id, chunk.contents, hit.score, json))

        return cls(tuple(passages))

    def as_json(self, with_scores: bool) -> bytes:
        """Return ``[document, ...]``, or ``[{"document": document, "score": score}, ...]``."""
        items: list[bytes] = []
        for passage in self.passages:
            item = passage.document
            if with_scores:
                item = b'{"document":%b,"score":%b}' % (item, to_json(passage.score))
            items.append(item)

        return b"[%b]" % b",".join(items)

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the answer."""
        return sum(2 * len(passage.document) for passage in self.passages)


class AnswerCache:
    """The most recently used answers, at most ``max_entries`` and ``MAX_CACHE_BYTES``."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._answers: OrderedDict[SearchKey, SearchAnswer] = OrderedDict()
        self._size_bytes = 0

    def get(self, search: SearchKey) -> SearchAnswer | None:
        """Return the cached answer, if there is one, and mark it as used."""
        answer = self._answers.get(search)
        if answer is not None:
            self._answers.move_to_end(search)
        return answer

    def put(self, search: SearchKey, answer: SearchAnswer) -> None:
        """Add an answer that is not cached yet, and evict the least recently used ones."""
        self._answers[search] = answer
        self._size_bytes += answer.size_bytes
        while len(self._answers) > self._max_entries or self._size_bytes > MAX_CACHE_BYTES:
            _, evicted = self._answers.popitem(last=False)
            self._size_bytes -= evicted.size_bytes
