"""The best rows of a score for every row, without looking at most of them twice.

The scores are seen as a matrix of ``LANES`` rows; its column maxima cost one vectorised pass. The k-th largest maximum
is a lower bound of the k-th best score, so that all of the best stand in the few columns whose maximum reaches it.
"""

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.retrieval.ranking import Ranking, rank

LANES = 64
FEW_COLUMNS = 512
"""Up to which the plain way is faster."""


def top_rows(scores_N: NDArray[np.float32], top_k: int) -> Ranking:
    """The ``top_k`` best rows with a positive score, by score, then by row; fewer where fewer score."""
    columns = len(scores_N) // LANES
    if columns <= max(top_k, FEW_COLUMNS):
        rows_M = np.flatnonzero(scores_N > 0)
        return rank(rows_M, scores_N[rows_M], top_k)
    scores_RC = scores_N[: LANES * columns].reshape(LANES, columns)
    best_C = scores_RC.max(axis=0)
    threshold = np.partition(best_C, columns - top_k)[columns - top_k]
    kept_C = np.flatnonzero((best_C >= threshold) & (best_C > 0))
    rows_M = (np.arange(0, LANES * columns, columns)[:, None] + kept_C).ravel()
    rows_M = np.concatenate([rows_M, np.arange(LANES * columns, len(scores_N))])
    scores_M = scores_N[rows_M]
    found_M = scores_M > 0
    return rank(rows_M[found_M], scores_M[found_M], top_k)
