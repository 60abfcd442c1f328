"""A retriever of the user's own: a function or class of a file that params name (docs/own_code.md).

It is called with the chunks of an index and the index's folder, and returns an object with the
method ``search`` of :class:`~deepsearch_rl.search.ranking.Retriever`. What that returns
is checked at every search, because a wrong row is a wrong passage, and nobody would see it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.own_code import OwnCode, is_own, load_own
from deepsearch_rl.core.records import Chunk
from deepsearch_rl.search import RetrieverName
from deepsearch_rl.search.ranking import Mask, Ranking

RETRIEVERS: tuple[RetrieverName, ...] = get_args(RetrieverName)


def require_retriever(name: str) -> str:
    """Return the name of a retriever, ours or the user's own; raise as :func:`load_own` where there is none."""
    if is_own(name):
        _load(name)
    else:
        look_up("retriever", name, dict.fromkeys(RETRIEVERS))
    return name


def _load(name: str) -> OwnCode:
    return load_own("retriever", name, ("chunks", "index"))


class OwnRetriever:
    """The user's retriever over the chunks of an index; raise ConfigError where it cannot be made."""

    def __init__(self, name: str, chunks: Sequence[Chunk], index: Path) -> None:
        self._code = _load(name)
        self._rows = len(chunks)
        self._retriever = self._code(chunks, index)
        if not callable(getattr(self._retriever, "search", None)):
            raise self._code.error("made an object without a method search")

    def search(
        self, queries: Sequence[str], top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """Return the user's rankings; raise ConfigError for any that a retriever may not return."""
        with self._code.named():
            rankings = list(self._retriever.search(queries, top_k, allowed_N))

        if len(rankings) != len(queries):
            raise self._code.error(f"returned {len(rankings)} rankings for {len(queries)} queries")
        for query, ranking in zip(queries, rankings, strict=True):
            problem = self._problem(ranking, top_k, allowed_N)
            if problem:
                raise self._code.error(f"returned {problem} for the query {query!r}")
        return rankings

    def _problem(self, ranking: Ranking, top_k: int, allowed_N: Mask | None) -> str:
        """Return what is wrong with a ranking, or an empty text."""
        if not isinstance(ranking, Ranking):
            return f"a {type(ranking).__name__}, not a Ranking"

        rows_K = np.asarray(ranking.rows_K)
        scores_K = np.asarray(ranking.scores_K)
        if rows_K.ndim != 1 or rows_K.shape != scores_K.shape:
            return f"rows of shape {rows_K.shape} with scores of shape {scores_K.shape}"
        if not rows_K.size:
            return ""
        if rows_K.dtype.kind not in "iu" or rows_K.min() < 0 or rows_K.max() >= self._rows:
            return f"rows that are not whole numbers from 0 to {self._rows - 1}"
        if len(rows_K) > top_k:
            return f"{len(rows_K)} rows, more than top_k = {top_k}"
        # It would count twice in every score of retrieval
        if len(np.unique(rows_K)) < len(rows_K):
            return "a row twice"
        if not np.isfinite(scores_K).all() or (np.diff(scores_K) > 0).any():
            return "scores that are not finite and descending"
        if allowed_N is not None and not allowed_N[rows_K].all():
            return "rows that allowed_N excludes"
        return ""
