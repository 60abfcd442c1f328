"""What every encoder promises.

All give L2-normalised float32 vectors, so that an inner product is a cosine. A text in which an encoder sees nothing
becomes the zero vector, which matches nothing.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Kind = Literal["query", "passage"]


class Encoder(Protocol):
    """Turns texts into vectors."""

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """L2-normalised embeddings_ND of N texts; ``kind`` says which side of the search they stand on."""
        ...


def normalise_rows(vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale every row to length 1; zero rows stay zero."""
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors_ND / np.where(norms_N1 > 0, norms_N1, 1), dtype=np.float32)
