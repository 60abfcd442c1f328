"""A second look at the best hits: a cross-encoder reads query and passage together (Nogueira and Cho 2019).

Any transformers folder for sequence classification serves: with one logit, that is the score; with two, the second
minus the first, which is the logit of "relevant".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from deepsearch_rl.errors import ArtifactError, ConfigError, UnavailableError
from deepsearch_rl.records import Record
from deepsearch_rl.retrieval.encoders.batching import token_batches
from deepsearch_rl.retrieval.row_table import Filter
from deepsearch_rl.retrieval.searcher import Hit, SearchesChunks

Pair = tuple[str, str]


class RerankerConfig(Record):
    """A cross-encoder behind a retriever."""

    model: Path = Field(description="transformers folder for sequence classification, with its tokenizer")
    depth: int = Field(ge=1, description="so many of a retriever's best hits are put into a new order")
    max_tokens: int = Field(ge=8, description="of query and passage together; the longer of the two is cut")
    batch_tokens: int = Field(ge=1, description="most tokens of a batch, padding included")
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "float16", "bfloat16"]


def reranker_config(
    model: Path, depth: int, max_tokens: int, batch_tokens: int, device: str, dtype: str
) -> RerankerConfig:
    """A config from a command line's options.

    Raises:
        ConfigError: there is no such device or dtype.
    """
    try:
        return RerankerConfig.model_validate(
            {
                "model": model,
                "depth": depth,
                "max_tokens": max_tokens,
                "batch_tokens": batch_tokens,
                "device": device,
                "dtype": dtype,
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"the reranker's {first['loc'][0]}: {first['msg']}.") from error


class CrossEncoder:
    """Scores pairs of query and passage; higher is more relevant."""

    def __init__(self, config: RerankerConfig) -> None:
        """Load the model from its folder.

        Raises:
            UnavailableError: the device is ``cuda`` and there is none.
            ArtifactError: the folder holds no sequence classifier with one or two labels and a fast tokenizer.
        """
        import torch  # noqa: PLC0415 - seconds to import, needed with a reranker alone
        from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415

        if config.device == "cuda" and not torch.cuda.is_available():
            raise UnavailableError(
                f"the reranker {config.model} is to run on a GPU (device: cuda), and torch finds none; "
                "attach one or set the device to cpu."
            )
        dtype = getattr(torch, config.dtype)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(config.model, local_files_only=True)
            model, loading = AutoModelForSequenceClassification.from_pretrained(
                config.model, dtype=dtype, local_files_only=True, output_loading_info=True
            )
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ArtifactError(f"{config.model} holds no reranker that transformers can load: {reason}") from error
        if loading["missing_keys"]:  # an encoder without a head would be given a random one
            missing = ", ".join(sorted(loading["missing_keys"])[:3])
            raise ArtifactError(f"{config.model} is no trained sequence classifier: its weights lack {missing}.")
        if model.config.num_labels not in (1, 2):
            raise ArtifactError(f"{config.model} has {model.config.num_labels} labels; a reranker has one or two.")
        self._model = model.to(config.device).eval()
        self._config = config

    def warm_up(self) -> None:
        """Score a short pair and one of full length, so that what can never work fails before the first search.

        Raises:
            ArtifactError: the tokenizer or the model knows no padding.
            ConfigError: the model cannot read ``max_tokens`` tokens, or not with this dtype on this device.
        """
        config = self._config
        try:
            self.score([("warm", "up"), ("warm", "up " * config.max_tokens)])
        except ValueError as error:
            reason = str(error).partition("\n")[0]
            raise ArtifactError(f"the reranker {config.model} cannot read pairs of unequal length: {reason}") from error
        except (IndexError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"the reranker {config.model} cannot read {config.max_tokens} tokens as {config.dtype} on "
                f"{config.device}: {reason}. Lower max_tokens (--rerank-tokens) to the positions that the model has, "
                "or choose another dtype."
            ) from error

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        """Finite scores_N of N pairs; equal pairs score alike, whatever else is asked with them.

        Raises:
            ConfigError: a score is not finite, as float16 may give where a model was trained in another dtype.
        """
        distinct = list(dict.fromkeys(pairs))
        if not distinct:
            return np.zeros(0, dtype=np.float32)
        tokens = self._tokenizer(
            [query for query, _ in distinct],
            [passage for _, passage in distinct],
            truncation="longest_first",
            max_length=self._config.max_tokens,
        )
        lengths_N = [len(ids) for ids in tokens["input_ids"]]
        scores_N = np.zeros(len(distinct), dtype=np.float32)
        for batch in token_batches(lengths_N, self._config.batch_tokens):
            scores_N[batch] = self._scored({name: [rows[i] for i in batch] for name, rows in tokens.items()})
        if not np.isfinite(scores_N).all():
            raise ConfigError(
                f"the reranker {self._config.model} gives scores that are not finite as {self._config.dtype}; "
                "choose float32 or bfloat16, or another model."
            )
        position = {pair: i for i, pair in enumerate(distinct)}
        return scores_N[[position[pair] for pair in pairs]]

    def _scored(self, tokens: dict[str, list[list[int]]]) -> NDArray[np.float32]:
        import torch  # noqa: PLC0415

        padded = self._tokenizer.pad(tokens, return_tensors="pt").to(self._config.device)
        with torch.inference_mode():
            logits_BC = self._model(**padded).logits.float().cpu().numpy()
        return logits_BC[:, -1] - logits_BC[:, 0] if logits_BC.shape[1] == 2 else logits_BC[:, 0]


@dataclass(frozen=True, slots=True)
class RerankedSearcher:
    """A searcher whose ``depth`` best hits a cross-encoder puts in order.

    Hits of equal score keep the first stage's order. Where more than ``depth`` hits are asked for, the rest follow in
    the first stage's order too, each scored one below the hit before it. Up to ``depth`` hits, a larger ``top_k``
    therefore only continues a smaller one. Beyond, the first stage is itself asked for ``top_k`` hits, and one that
    looks further for more, like a fusion or an approximate index, may then name other hits as its ``depth`` best.
    """

    searcher: SearchesChunks
    reranker: CrossEncoder
    depth: int

    def search(self, queries: Sequence[str], top_k: int, where: Filter | None = None) -> list[list[Hit]]:
        """For each query at most ``top_k`` hits, best first; fewer where the first stage finds fewer.

        Raises:
            ValueError: ``top_k`` is below 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k}")
        found = self.searcher.search(queries, max(top_k, self.depth), where)
        pairs = [
            (query, hit.chunk.contents)
            for query, hits in zip(queries, found, strict=True)
            for hit in hits[: self.depth]
        ]
        scores = iter(self.reranker.score(pairs).tolist())
        return [self._reordered(hits, scores)[:top_k] for hits in found]

    def _reordered(self, hits: list[Hit], scores: Iterator[float]) -> list[Hit]:
        head = [Hit(hit.row, next(scores), hit.chunk) for hit in hits[: self.depth]]
        head.sort(key=lambda hit: -hit.score)  # stable
        rest = enumerate(hits[self.depth :], 1)
        return head + [Hit(hit.row, head[-1].score - distance, hit.chunk) for distance, hit in rest]
