"""What every encoder is.

All give L2-normalised float32 vectors, so that an inner product is a cosine. A text in which an
encoder sees nothing becomes the zero vector; a blank text is one in every encoder. As a query it
finds nothing, as a passage it scores 0. A text's vector does not depend on the texts beside it,
except for the rounding of floats.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.errors import UnavailableError
from deepsearch_rl.core.records import Chunk, Record

Kind = Literal["query", "passage"]
Vectors = NDArray[np.float32]


class Encoder(Protocol):
    """Turns texts into vectors."""

    @property
    def dimension(self) -> int:
        """D, the length of every vector."""
        ...

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Return L2-normalised embeddings_ND of N texts; ``kind`` is their side of the search."""
        ...


class EncoderConfig(Record):
    """What params say of an encoder."""

    def prepare(self, chunks: Sequence[Chunk], folder: Path, seed: int) -> None:
        """Write what the encoder learns from the chunks to ``folder``; nothing where it has weights."""

    @abstractmethod
    def open(self, folder: Path) -> Encoder:
        """Open the encoder; ``folder`` is what :meth:`prepare` wrote."""

    def state(self) -> dict[str, object]:
        """Return what decides the vectors beside these fields and what was learnt, such as the weights' digest."""
        return {}


def encode_readable(
    texts: Sequence[str], dimension: int, encode: Callable[[list[str]], Vectors]
) -> Vectors:
    """Return normalised embeddings_ND: ``encode`` for texts with content, zeros for blank ones."""
    embeddings_ND = np.zeros((len(texts), dimension), dtype=np.float32)
    rows_M = [row for row, text in enumerate(texts) if text.strip()]

    if rows_M:
        readable = [_without_lone_surrogates(texts[row]) for row in rows_M]
        embeddings_ND[rows_M] = normalise_rows(encode(readable))

    return embeddings_ND


def _without_lone_surrogates(text: str) -> str:
    # Half of a pair, which JSON can carry, becomes a question mark: tokenizers and servers refuse it.
    return text.encode("utf-8", "replace").decode("utf-8")


def normalise_rows(vectors_ND: Vectors) -> Vectors:
    """Scale every row to length 1; zero rows stay zero."""
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors_ND / np.where(norms_N1 > 0, norms_N1, 1), dtype=np.float32)


def first_line(error: Exception) -> str:
    """Return what a library says, without the paragraphs that follow."""
    return str(error).partition("\n")[0]


def require_device(device: str, owner: str, field: str) -> None:
    """Raise UnavailableError where the device is ``cuda`` and torch finds no GPU."""
    import torch  # noqa: PLC0415 - seconds to import, needed by models alone

    if device == "cuda" and not torch.cuda.is_available():
        raise UnavailableError(
            f"{owner} is to run on a GPU ({field}: cuda), and torch finds none; attach one or set the device to cpu."
        )
