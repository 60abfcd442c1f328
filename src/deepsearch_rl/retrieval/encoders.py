"""Text encoders for dense retrieval: a weightless local one, and any sentence-transformers-style folder.

Both give L2-normalised float32 vectors, so that an inner product is a cosine. A text in which an encoder sees nothing
becomes the zero vector, which matches nothing.
"""

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_matrix

from deepsearch_rl.errors import ArtifactError, ConfigError, UnavailableError
from deepsearch_rl.records import NonEmpty, Record
from deepsearch_rl.retrieval.analysis import analyse

Kind = Literal["query", "passage"]
ItemT = TypeVar("ItemT")


class Encoder(Protocol):
    """Turns texts into vectors."""

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """L2-normalised embeddings_ND of N texts; ``kind`` says which side of the search they stand on."""
        ...


class TfidfSvdConfig(Record):
    """Latent semantic analysis of the chunks themselves: no weights, no download."""

    name: Literal["tfidf_svd"]
    dimension: int = Field(ge=1, description="singular vectors kept; fewer where the corpus has a lower rank")


class TransformersConfig(Record):
    """A transformers encoder with its tokenizer, e.g. e5-base-v2."""

    name: Literal["transformers"]
    model: NonEmpty = Field(description="a local folder, or a hub repository")
    revision: NonEmpty | None = Field(
        description="commit of the hub repository; null for a folder, where no hub is asked"
    )
    query_prefix: str = Field(description="put before every query; 'query: ' for e5")
    passage_prefix: str = Field(description="put before every passage; 'passage: ' for e5")
    max_tokens: int = Field(ge=1, description="longer texts are cut")
    batch_size: int = Field(ge=1)
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "float16", "bfloat16"]


EncoderConfig = Annotated[TfidfSvdConfig | TransformersConfig, Field(discriminator="name")]


def normalise_rows(vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale every row to length 1; zero rows stay zero."""
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors_ND / np.where(norms_N1 > 0, norms_N1, 1), dtype=np.float32)


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


class TransformersEncoder:
    """Mean pooling over an encoder's last hidden states, with a prefix per side (E5, Wang et al. 2022)."""

    def __init__(self, config: TransformersConfig) -> None:
        """Load the model; only a configured revision is ever downloaded.

        Raises:
            UnavailableError: the device is ``cuda`` and there is none.
            ArtifactError: the folder or repository holds no loadable encoder.
        """
        import torch  # noqa: PLC0415 - seconds to import, needed by this encoder alone
        from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415

        if config.device == "cuda" and not torch.cuda.is_available():
            raise UnavailableError(
                f"the encoder {config.model} is to run on a GPU (index.encoder.device: cuda), and torch finds none; "
                f"attach one or set the device to cpu."
            )
        source = {"revision": config.revision} if config.revision else {"local_files_only": True}
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(config.model, **source)
            model = AutoModel.from_pretrained(config.model, dtype=getattr(torch, config.dtype), **source)
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ArtifactError(f"{config.model} holds no encoder that transformers can load: {reason}") from error
        self._model = model.to(config.device).eval()
        self._config = config

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Embeddings_ND of N texts, each with its side's prefix, batched by length so that little is padded."""
        prefix = self._config.query_prefix if kind == "query" else self._config.passage_prefix
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors_ND = np.zeros((len(texts), self._model.config.hidden_size), dtype=np.float32)
        for batch in _batches(order, self._config.batch_size):
            vectors_ND[batch] = self._pooled([prefix + texts[index] for index in batch])
        return normalise_rows(vectors_ND)

    def _pooled(self, texts: list[str]) -> NDArray[np.float32]:
        import torch  # noqa: PLC0415

        tokens = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._config.max_tokens, return_tensors="pt"
        ).to(self._config.device)
        with torch.inference_mode():
            hidden_BTD = self._model(**tokens).last_hidden_state.float()
        mask_BT1 = tokens["attention_mask"].unsqueeze(-1).float()
        pooled_BD = (hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1).clamp(min=1)
        return pooled_BD.cpu().numpy()


def _batches(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    return (items[start : start + size] for start in range(0, len(items), size))
