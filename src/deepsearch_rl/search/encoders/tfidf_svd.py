"""Latent semantic analysis: an encoder without weights.

It learns from a sample of the chunks and its most frequent terms, so that memory does not grow with
the corpus.
"""

import json
import random
import zipfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_matrix

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.records import Chunk
from deepsearch_rl.search.analysis import analyse
from deepsearch_rl.search.encoders.encoder import EncoderConfig, Kind, Vectors, normalise_rows


class TfidfSvdConfig(EncoderConfig):
    """Latent semantic analysis of the chunks themselves: no weights, no download."""

    name: Literal["tfidf_svd"]
    dimension: int = Field(
        ge=1, description="singular vectors kept; fewer where the corpus has a lower rank"
    )
    fit_rows: int = Field(
        ge=1, description="chunks that are learnt from, drawn by seed; all where there are fewer"
    )
    max_terms: int = Field(
        ge=1, description="the sample's most frequent terms are known, the others are not"
    )

    def prepare(self, chunks: Sequence[Chunk], folder: Path, seed: int) -> None:
        """Learn from a sample of the chunks and write the encoder."""
        TfidfSvdEncoder.fit(sample_texts(chunks, self.fit_rows, seed), self, seed).save(folder)

    def open(self, folder: Path) -> "TfidfSvdEncoder":
        """Open what :meth:`prepare` wrote; raise ArtifactError where a file is missing or damaged."""
        return TfidfSvdEncoder.load(folder)


@dataclass(frozen=True, slots=True)
class TfidfSvdEncoder:
    """TF-IDF with sublinear term frequencies, projected on the corpus's leading singular vectors (Deerwester 1990)."""

    vocabulary: dict[str, int]
    idf_V: NDArray[np.float32]
    projection_VD: Vectors

    @classmethod
    def fit(cls, texts: Iterable[str], config: TfidfSvdConfig, seed: int) -> Self:
        """Learn all from texts, equal inputs alike; raise ConfigError where fewer than two terms would be known."""
        from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415 - needed for fitting alone, costs a second

        columns: dict[str, int] = {}
        counts_NV = _count_terms(texts, columns, grow=True)

        if min(len(columns), config.max_terms) < 2:
            raise ConfigError(
                "tfidf_svd learns from two terms at least; the chunks that it read hold "
                f"{len(columns)}, and max_terms is {config.max_terms}. Raise max_terms, index more "
                "text, or choose another encoder."
            )

        terms = list(columns)
        frequencies_V = np.bincount(counts_NV.indices, minlength=len(terms))

        # The columns of the vocabulary, in the order of their terms: the place of a term must not
        # depend on which chunk holds it first.
        def by_frequency(column: int) -> tuple[int, str]:
            return -frequencies_V[column], terms[column]

        frequent = sorted(range(len(terms)), key=by_frequency)[: config.max_terms]
        vocabulary_columns = sorted(frequent, key=terms.__getitem__)
        counts_NV = counts_NV[:, vocabulary_columns]
        frequencies_V = frequencies_V[vocabulary_columns].astype(np.float32)

        # scikit-learn's smoothed idf: as if one more document held every term.
        documents = len(counts_NV.indptr) - 1
        idf_V = (np.log((1 + documents) / (1 + frequencies_V)) + 1).astype(np.float32)

        rank = min(config.dimension, documents, len(vocabulary_columns))
        decomposition = TruncatedSVD(rank, random_state=seed).fit(_tfidf(counts_NV, idf_V))
        components_DV = np.asarray(decomposition.components_)

        vocabulary = _positions(terms[column] for column in vocabulary_columns)
        return cls(vocabulary, idf_V, np.ascontiguousarray(components_DV.T, dtype=np.float32))

    @property
    def dimension(self) -> int:
        """Number of singular vectors."""
        return self.projection_VD.shape[1]

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:  # noqa: ARG002 - both sides are alike
        """Return embeddings_ND of N texts, queries and passages alike; unknown terms are ignored."""
        weights_NV = _tfidf(_count_terms(texts, self.vocabulary, grow=False), self.idf_V)
        return normalise_rows(np.asarray(weights_NV @ self.projection_VD))

    def save(self, folder: Path) -> None:
        """Write ``vocabulary.json`` and ``projection.npz`` (plain arrays, no pickle)."""
        folder.mkdir(parents=True)
        (folder / "vocabulary.json").write_text(json.dumps(list(self.vocabulary)), encoding="utf-8")
        np.savez(folder / "projection.npz", idf_V=self.idf_V, projection_VD=self.projection_VD)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open what :meth:`save` wrote; raise ArtifactError where a file is missing or damaged."""
        try:
            terms: list[str] = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
            with np.load(folder / "projection.npz") as arrays:
                return cls(_positions(terms), arrays["idf_V"], arrays["projection_VD"])
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ArtifactError(
                f"the encoder in {folder} cannot be read ({error}); build the index again."
            ) from error


def sample_texts(chunks: Sequence[Chunk], rows: int, seed: int) -> Iterator[str]:
    """Yield the contents of at most ``rows`` chunks, drawn without replacement, in the order of the chunk file."""
    if len(chunks) <= rows:
        for chunk in chunks:
            yield chunk.contents
        return

    for row in sorted(random.Random(seed).sample(range(len(chunks)), rows)):
        yield chunks[row].contents


def _positions(terms: Iterable[str]) -> dict[str, int]:
    """Return the place of every term."""
    return {term: position for position, term in enumerate(terms)}


def _count_terms(texts: Iterable[str], vocabulary: dict[str, int], grow: bool) -> csr_matrix:
    """Return how often each term occurs, counts_NV, from flat arrays; ``grow`` adds terms to the vocabulary."""
    # Arrays, because lists of Python numbers would take several times the memory
    columns_M = array("i")
    counts_M = array("f")
    ends = array("q", [0])

    for text in texts:
        for term, count in Counter(analyse(text)).items():
            column = vocabulary.setdefault(term, len(vocabulary)) if grow else vocabulary.get(term)
            if column is not None:
                columns_M.append(column)
                counts_M.append(count)

        ends.append(len(columns_M))

    parts = (
        np.array(counts_M, dtype=np.float32),
        np.array(columns_M, dtype=np.int32),
        np.array(ends),
    )
    return csr_matrix(parts, shape=(len(ends) - 1, len(vocabulary)))


def _tfidf(counts_NV: csr_matrix, idf_V: NDArray[np.float32]) -> csr_matrix:
    """Return L2-normalised weights_NV, ``(1 + ln count) * idf``."""
    # The sum of a row's squares rounds differently in another order.
    counts_NV.sort_indices()
    weights_M = (1 + np.log(counts_NV.data)) * idf_V[counts_NV.indices]

    documents = len(counts_NV.indptr) - 1
    rows_M = np.repeat(np.arange(documents), np.diff(counts_NV.indptr))
    norms_N = np.sqrt(np.bincount(rows_M, weights_M**2, minlength=documents))
    scaled_M = (weights_M / norms_N[rows_M]).astype(np.float32)
    return csr_matrix((scaled_M, counts_NV.indices, counts_NV.indptr), shape=counts_NV.shape)
