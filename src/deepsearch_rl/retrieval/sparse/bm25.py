"""BM25 over the chunk file with bm25s, which stores every term's score per document, so that a query is one sum.

k1 = 0.9 and b = 0.4 are Pyserini's defaults, the setting of the published baselines; bm25s's method "lucene" is
Lucene's formula (Kamphuis et al. 2020). Queries are analysed as documents are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import bm25s
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.errors import ArtifactError, ConfigError
from deepsearch_rl.records import Record
from deepsearch_rl.retrieval.ranking import Ranking, rank
from deepsearch_rl.retrieval.sparse.analysis import analyse


class Bm25Config(Record):
    """The two parameters of BM25."""

    k1: float = Field(gt=0, description="how slowly repeated terms saturate")
    b: float = Field(ge=0, le=1, description="how strongly long chunks are discounted; 0 is not at all")


class Bm25Index:
    """An in-memory BM25 index; rows are positions in the text sequence it was built from."""

    def __init__(self, model: bm25s.BM25) -> None:
        self._model = model

    @classmethod
    def build(cls, texts: Sequence[str], config: Bm25Config) -> Self:
        """Index texts.

        Raises:
            ConfigError: no text holds a single term.
        """
        # bm25s's own vocabulary comes from a set, whose order changes from process to process; ours is by first use.
        vocabulary: dict[str, int] = {}
        ids = [[vocabulary.setdefault(term, len(vocabulary)) for term in analyse(text)] for text in texts]
        if not vocabulary:
            raise ConfigError("there is nothing to index: no chunk holds a word that is not a stop word.")
        model = bm25s.BM25(k1=config.k1, b=config.b, method="lucene")
        model.index((ids, vocabulary), create_empty_token=False, show_progress=False)
        return cls(model)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open what :meth:`save` wrote.

        Raises:
            ArtifactError: a file is missing or damaged.
        """
        try:
            return cls(bm25s.BM25.load(folder, show_progress=False))
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"the BM25 index in {folder} cannot be read ({error}); build it again.") from error

    def save(self, folder: Path) -> None:
        """Write the index to a folder: arrays as .npy without pickles, the vocabulary as JSON.

        Raises:
            ArtifactError: it cannot be written, e.g. because the disk is full.
        """
        try:
            self._model.save(folder, show_progress=False)
        except OSError as error:  # numpy's text is "N requested and M written", without the system's error
            raise ArtifactError(f"the BM25 index cannot be written to {folder} ({error}); is the disk full?") from error

    def search(
        self, queries: Sequence[str], top_k: int, allowed_N: NDArray[np.bool_] | None = None
    ) -> list[Ranking]:
        """Rank the allowed rows that share a term with the query; a query without a known term finds nothing."""
        return [self._search_one(query, top_k, allowed_N) for query in queries]

    def _search_one(self, query: str, top_k: int, allowed_N: NDArray[np.bool_] | None) -> Ranking:
        scores_N = self._model.get_scores_from_ids(self._model.get_tokens_ids(analyse(query)))
        matching_M = np.flatnonzero(scores_N > 0 if allowed_N is None else (scores_N > 0) & allowed_N)
        return rank(matching_M, scores_N[matching_M], top_k)
