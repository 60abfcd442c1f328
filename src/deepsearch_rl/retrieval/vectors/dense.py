"""Dense retrieval: a vector index over the encoder's vectors, row N of the index being row N of the chunk store."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.retrieval.encoders.encoder import Encoder
from deepsearch_rl.retrieval.ranking import Ranking
from deepsearch_rl.retrieval.vectors.vector_index import NO_ROW, VectorIndex


@dataclass(frozen=True, slots=True)
class DenseRetriever:
    """Encodes queries and asks a vector index."""

    encoder: Encoder
    vectors: VectorIndex

    def search(self, queries: Sequence[str], top_k: int, allowed_N: NDArray[np.bool_] | None = None) -> list[Ranking]:
        """Rank rows by inner product; a query in which the encoder sees nothing finds nothing.

        Raises:
            ArtifactError: the encoder's vectors have another dimension than the index's.
        """
        if not queries:
            return []
        queries_QD = self.encoder.encode(queries, "query")
        if queries_QD.shape[1] != self.vectors.dimension:
            raise ArtifactError(
                f"the encoder gives vectors of {queries_QD.shape[1]} dimensions and the index holds "
                f"{self.vectors.dimension}, so it was built with another encoder; build it again with this one."
            )
        found_QK = self.vectors.search(queries_QD, top_k, allowed_N)
        return [
            Ranking(rows_K[rows_K != NO_ROW], scores_K[rows_K != NO_ROW])
            for scores_K, rows_K in zip(*found_QK, strict=True)
        ]
