"""The simple form of BM25F (Robertson and Zaragoza 2009, section 3.6), which with one field is BM25.

For a term t in a row d, with fields f of weight w_f:

    tf(t, d)    = sum over f of  w_f * count(t, d, f) / (1 - b + b * length(d, f) / mean_length(f))
    score(t, d) = idf(t) * tf(t, d) / (k1 + tf(t, d))
    idf(t)      = ln(1 + (N - n(t) + 0.5) / (n(t) + 0.5))

``n(t)`` is the number of the N rows that hold the term in any field. A query's score is the sum over its terms, each as
often as it occurs. The inverse document frequency is Lucene's, which is never negative; dividing tf by the length
before it saturates equals Lucene's BM25 where there is one field (Kamphuis et al. 2020, table 1). Weighting counts
before they saturate, and not scores after, is the point of BM25F: a word in title and body is one word seen twice.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Bm25Formula:
    """BM25F with the statistics of a collection of ``rows`` rows."""

    k1: float
    b: float
    weights_F: tuple[float, ...]
    mean_lengths_F: tuple[float, ...]
    """In terms."""
    rows: int

    def idf(self, frequencies_M: NDArray[np.int64]) -> NDArray[np.float64]:
        """Inverse document frequencies of terms that M numbers of rows hold."""
        return np.log1p((self.rows - frequencies_M + 0.5) / (frequencies_M + 0.5))

    def saturation(self, counts_MF: NDArray[np.uint32], lengths_MF: NDArray[np.uint32]) -> NDArray[np.float64]:
        """``tf / (k1 + tf)`` of M pairs of term and row, in (0, 1): counts and the row's lengths by field."""
        frequencies_M = np.zeros(len(counts_MF))
        # Field by field, because a matrix product may round differently with M.
        for field, (weight, mean_length) in enumerate(zip(self.weights_F, self.mean_lengths_F, strict=True)):
            if mean_length > 0:  # else no row has the field
                norms_M = 1 - self.b + self.b * lengths_MF[:, field] / mean_length
                # A row without the field may have norm 0 (b = 1), and has no count either.
                frequencies_M += weight * counts_MF[:, field] / np.where(norms_M > 0, norms_M, 1.0)
        return frequencies_M / (self.k1 + frequencies_M)
