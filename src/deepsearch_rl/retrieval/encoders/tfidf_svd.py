"""Latent semantic analysis: a weightless encoder that learns its vocabulary and its axes from the chunks themselves."""

import json
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_matrix

from deepsearch_rl.errors import ArtifactError, ConfigError
from deepsearch_rl.records import Record
from deepsearch_rl.retrieval.encoders.encoder import Kind, normalise_rows
from deepsearch_rl.retrieval.sparse.analysis import analyse


class TfidfSvdConfig(Record):
    """Latent semantic analysis of the chunks themselves: no weights, no download."""

    name: Literal["tfidf_svd"]
    dimension: int = Field(ge=1, description="singular vectors kept; fewer where the corpus has a lower rank")


class TfidfSvdEncoder:
    """TF-IDF with sublinear term frequencies, projected on the corpus's leading singular vectors (Deerwester 1990)."""

    def __init__(
        self, vocabulary: dict[str, int], idf_V: NDArray[np.float32], projection_VD: NDArray[np.float32]
    ) -> None:
        self._vocabulary, self._idf_V, self._projection_VD = vocabulary, idf_V, projection_VD

    @classmethod
    def fit(cls, texts: Sequence[str], config: TfidfSvdConfig, seed: int) -> Self:
        """Learn vocabulary, document frequencies and projection from the corpus; equal inputs give equal arrays.

        Raises:
            ConfigError: no text holds a single term.
        """
        from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415 - needed for fitting alone, costs a second

        documents = [Counter(analyse(text)) for text in texts]
        frequencies = Counter(term for document in documents for term in document)
        if not frequencies:
            raise ConfigError("there is nothing to encode: no chunk holds a word that is not a stop word.")
        vocabulary = {term: column for column, term in enumerate(sorted(frequencies))}
        counts_V = np.array([frequencies[term] for term in vocabulary], dtype=np.float32)
        idf_V = np.log((1 + len(documents)) / (1 + counts_V)) + 1
        weights_NV = _tfidf(documents, vocabulary, idf_V)
        rank = min(config.dimension, len(documents), len(vocabulary))
        components_DV = np.asarray(TruncatedSVD(rank, random_state=seed).fit(weights_NV).components_)
        return cls(vocabulary, idf_V, np.ascontiguousarray(components_DV.T, dtype=np.float32))

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:  # noqa: ARG002 - both sides are alike
        """Embeddings_ND of N texts; queries and passages are treated alike."""
        weights_NV = _tfidf([Counter(analyse(text)) for text in texts], self._vocabulary, self._idf_V)
        return normalise_rows(np.asarray(weights_NV @ self._projection_VD))

    def save(self, folder: Path) -> None:
        """Write ``vocabulary.json`` and ``projection.npz`` (plain arrays, no pickle)."""
        folder.mkdir()
        (folder / "vocabulary.json").write_text(json.dumps(list(self._vocabulary)), encoding="utf-8")
        np.savez(folder / "projection.npz", idf_V=self._idf_V, projection_VD=self._projection_VD)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open what :meth:`save` wrote.

        Raises:
            ArtifactError: a file is missing or damaged.
        """
        try:
            terms: list[str] = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
            with np.load(folder / "projection.npz") as arrays:
                return cls({term: i for i, term in enumerate(terms)}, arrays["idf_V"], arrays["projection_VD"])
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ArtifactError(f"the encoder in {folder} cannot be read ({error}); build the index again.") from error


def _tfidf(documents: Sequence[Counter[str]], vocabulary: dict[str, int], idf_V: NDArray[np.float32]) -> csr_matrix:
    """L2-normalised weights_NV, ``(1 + ln count) * idf``; terms outside the vocabulary are dropped."""
    columns: list[int] = []
    counts: list[int] = []
    ends = [0]
    for document in documents:
        known = sorted((vocabulary[term], count) for term, count in document.items() if term in vocabulary)
        columns += [column for column, _ in known]
        counts += [count for _, count in known]
        ends.append(len(columns))
    columns_M = np.array(columns, dtype=np.int32)
    weights_M = (1 + np.log(np.array(counts, dtype=np.float32))) * idf_V[columns_M]
    rows_M = np.repeat(np.arange(len(documents)), np.diff(ends))
    norms_N = np.sqrt(np.bincount(rows_M, weights_M**2, minlength=len(documents)))
    scaled_M = (weights_M / norms_N[rows_M]).astype(np.float32)
    return csr_matrix((scaled_M, columns_M, np.array(ends)), shape=(len(documents), len(vocabulary)))
