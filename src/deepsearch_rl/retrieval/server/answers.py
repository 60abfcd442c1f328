"""What a search found, in the form in which it is sent, and a bounded store of such answers.

A document is written as JSON once, when it is found. A repeated query is then a look-up and a copy of bytes, and a kept
answer takes half of the memory of its records.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from deepsearch_rl.retrieval.row_table import Filter
from deepsearch_rl.retrieval.searcher import Hit

MAX_CACHE_BYTES = 32 * 2**20
"""Size of all kept answers, whatever their number: long answers must not push the memory up."""
MAX_KEPT_BYTES = MAX_CACHE_BYTES // 64
"""Size of an answer that is kept. Who asks for hundreds of passages does not ask for them twice."""
_PASSAGE_BYTES = 400
"""What a passage takes beside its texts, roughly."""


class Search(NamedTuple):
    """What is searched for; equal ones have equal answers."""

    query: str
    top_k: int
    where: Filter | None


class Passage(NamedTuple):
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
class Answer:
    """What was found for one search, best first."""

    passages: tuple[Passage, ...]

    @classmethod
    def of(cls, hits: Iterable[Hit]) -> Self:
        """The answer that consists of these hits.

        Raises:
            ValueError: a score is not finite, which JSON has no number for.
        """
        return cls(tuple(map(_passage, hits)))

    def as_json(self, with_scores: bool) -> bytes:
        """``[document, ...]``, or ``[{"document": document, "score": score}, ...]``."""
        if not with_scores:
            return b"[%b]" % b",".join([passage.document for passage in self.passages])
        scored = [
            b'{"document":%b,"score":%b}' % (passage.document, to_json(passage.score)) for passage in self.passages
        ]
        return b"[%b]" % b",".join(scored)

    @property
    def size_bytes(self) -> int:
        """About what the answer takes in memory."""
        return sum(_PASSAGE_BYTES + len(passage.contents) + len(passage.document) for passage in self.passages)


class AnswerCache:
    """The answers used last, at most ``max_entries`` of them and ``MAX_CACHE_BYTES`` in all."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._answers: OrderedDict[Search, tuple[Answer, int]] = OrderedDict()
        self._size_bytes = 0

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
        if size_bytes > MAX_KEPT_BYTES:
            return
        self._answers[search] = answer, size_bytes
        self._size_bytes += size_bytes
        while len(self._answers) > self._max_entries or self._size_bytes > MAX_CACHE_BYTES:
            _, (_, dropped_bytes) = self._answers.popitem(last=False)
            self._size_bytes -= dropped_bytes


def _passage(hit: Hit) -> Passage:
    if not math.isfinite(hit.score):
        raise ValueError(f"passage {hit.chunk.id!r} was found with score {hit.score}")
    return Passage(hit.chunk.id, hit.chunk.contents, hit.score, _document(hit))


def _document(hit: Hit) -> bytes:
    metadata = hit.chunk.metadata.model_dump(mode="json")
    url = metadata.get("url") or hit.chunk.id  # clients read it from every document, whatever the corpus
    document = {"id": hit.chunk.id, "contents": hit.chunk.contents, "url": url, "metadata": metadata}
    return to_json(document, inf_nan_mode="null")
