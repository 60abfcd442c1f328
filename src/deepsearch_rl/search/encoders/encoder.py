"""What every encoder is.

All give L2-normalised float32 vectors, so that an inner product is a cosine. A text in which an
encoder sees nothing becomes the zero vector; a blank text is one in every encoder. As a query it
finds nothing, as a passage it scores 0. A text's vector does not depend on the texts beside it,
except for the rounding of floats.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.core.errors import ArtifactError, UnavailableError
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


class Unread(Record):
    """What an encoder does not read of passages that are too long for it, in what it counts."""

    texts: int = Field(default=0, ge=0, description="passages whose end is not read")
    length: int = Field(
        default=0, ge=0, description="of these with their prefixes, in tokens or characters"
    )
    unread: int = Field(default=0, ge=0, description="part of this length")

    @classmethod
    def of(cls, lengths: Iterable[int], limit: int) -> "Unread":
        """Return what lies behind a limit in texts of these lengths."""
        long = [length for length in lengths if length > limit]
        return cls(texts=len(long), length=sum(long), unread=sum(long) - limit * len(long))

    def __add__(self, other: "Unread") -> "Unread":
        return Unread(
            texts=self.texts + other.texts,
            length=self.length + other.length,
            unread=self.unread + other.unread,
        )


@runtime_checkable
class LimitedEncoder(Protocol):
    """An encoder that reads the beginning of a long text alone."""

    def count_unread(self, passages: Sequence[str]) -> Unread:
        """Return how much of the passages :meth:`Encoder.encode` does not read."""
        ...


class EncoderConfig(Record):
    """What params say of an encoder."""

    def prepare(self, chunks: Sequence[Chunk], folder: Path, seed: int) -> None:
        """Write what the encoder learns from the chunks to ``folder``; nothing where it has weights."""

    @abstractmethod
    def open(self, folder: Path) -> Encoder:
        """Open the encoder; ``folder`` is what :meth:`prepare` wrote."""

    def files(self) -> dict[str, str]:
        """Return the SHA-256 of the local files, by name, that decide the vectors beside these fields."""
        return {}

    def state(self) -> dict[str, object]:
        """Return what decides the vectors beside these fields and what was learnt."""
        return {"files": self.files()}


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
    """Scale every row to length 1; zero rows stay zero, one with NaN or an infinite number becomes NaN."""
    # Squares of float32 may be infinite
    norms_N1 = np.linalg.norm(vectors_ND.astype(np.float64), axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        unit_ND = vectors_ND / np.where(norms_N1 == 0, 1, norms_N1)
    return np.ascontiguousarray(unit_ND, dtype=np.float32)


def require_finite(vectors_ND: Vectors, name: Callable[[int], str]) -> None:
    """Raise ArtifactError with the ``name`` of the first row that holds NaN or an infinite number."""
    finite_N = np.isfinite(vectors_ND).all(axis=1)
    if not finite_N.all():
        row = int(finite_N.argmin())
        raise ArtifactError(
            f"the vector of {name(row)} holds NaN or infinite numbers, which compare with nothing; "
            "encode it with dtype float32, or look for what is odd in the text or the weights."
        )


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
