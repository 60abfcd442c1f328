"""Answers as they are sent, and a bounded cache of answers.

A document is written as JSON once, when it is found; a repeated query is then a look-up and a copy
of bytes.
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

# Size of all cached answers, whatever their number: long answers must not push the memory up
MAX_CACHE_BYTES = 32 * 2**20

# Size of one cached answer: nobody asks for hundreds of passages twice
MAX_CACHED_BYTES = MAX_CACHE_BYTES // 64

# About what a passage takes beside its texts: Python's objects around them
_PASSAGE_BYTES = 400


class SearchKey(NamedTuple):
    """What is searched for; equal ones have equal answers."""

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
        """Return the answer of these hits; raise ValueError for a score that JSON has no number for."""
        passages: list[SentPassage] = []
        for hit in hits:
            chunk = hit.chunk
            if not math.isfinite(hit.score):
                raise ValueError(f"the search gave passage {chunk.id!r} the score {hit.score}")
            metadata = chunk.metadata.model_dump(mode="json")
            # Clients read it from every document, whatever the corpus
            url = metadata.get("url") or chunk.id
            document = {
                "id": chunk.id,
                "contents": chunk.contents,
                "url": url,
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
        """About what the answer takes in memory."""
        size_bytes = 0
        for passage in self.passages:
            size_bytes += _PASSAGE_BYTES + len(passage.contents) + len(passage.document)

        return size_bytes


class AnswerCache:
    """The answers used last, at most ``max_entries`` of them and ``MAX_CACHE_BYTES`` in all."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[SearchKey, tuple[SearchAnswer, int]] = OrderedDict()
        self._size_bytes = 0

    def get(self, search: SearchKey) -> SearchAnswer | None:
        """Return the cached answer, if any, and count it as used last."""
        if search not in self._entries:
            return None
        self._entries.move_to_end(search)
        return self._entries[search][0]

    def put(self, search: SearchKey, answer: SearchAnswer) -> None:
        """Add an answer, and drop those used longest ago until all fit."""
        size_bytes = answer.size_bytes + len(search.query)
        if size_bytes > MAX_CACHED_BYTES:
            return
        self._entries[search] = answer, size_bytes
        self._size_bytes += size_bytes
        while len(self._entries) > self._max_entries or self._size_bytes > MAX_CACHE_BYTES:
            _, (_, dropped_bytes) = self._entries.popitem(last=False)
            self._size_bytes -= dropped_bytes
