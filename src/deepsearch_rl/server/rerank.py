"""A cross-encoder puts the best hits in a new order: it reads query and passage together (Nogueira and Cho 2019).

Any folder for sequence classification serves: with one label, its logit is the score; with two, the
second logit minus the first, which is the logit of "relevant".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.core.errors import ArtifactError, ConfigError, EndpointError
from deepsearch_rl.core.records import Record
from deepsearch_rl.search import Device
from deepsearch_rl.search.encoders.encoder import first_line, require_device
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit, QueriesFailedError, SearchesChunks

Pair = tuple[str, str]


class RerankerConfig(Record):
    """A cross-encoder behind a retriever."""

    model: Path = Field(
        description="transformers folder for sequence classification, with its tokenizer"
    )
    depth: int = Field(ge=1, description="hits of a retriever that get a new order")
    max_tokens: int = Field(
        ge=8, description="of query and passage together; the longer of the two is cut"
    )
    batch_tokens: int = Field(
        ge=1, description="most tokens of a forward pass: batch_tokens / max_tokens pairs"
    )
    device: Device
    dtype: Literal["float32", "float16", "bfloat16"]


class CrossEncoder:
    """Scores pairs of query and passage; higher is more relevant."""

    def __init__(self, config: RerankerConfig) -> None:
        """Load the model; raise UnavailableError without the device, ArtifactError without a trained classifier."""
        import sentence_transformers  # noqa: PLC0415 - seconds to import, as torch
        import torch  # noqa: PLC0415

        require_device(config.device, f"the reranker {config.model}", "device")
        folder = config.model
        # The library would take it for a hub's repository, and blame the network
        if not folder.is_dir():
            raise ArtifactError(
                f"there is no folder {folder}, so it holds no reranker; check the path (--reranker, "
                "retrieval.reranker.model)."
            )
        dtype = {"dtype": getattr(torch, config.dtype)}

        try:
            model = sentence_transformers.CrossEncoder(
                str(folder), device=config.device, local_files_only=True, model_kwargs=dtype
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ArtifactError(
                f"{folder} holds no reranker that can be loaded: {first_line(error)}"
            ) from error

        # transformers would give an encoder a classification head of random weights
        [name, *_] = (model.config and model.config.architectures) or ("model of no named class",)
        if not name.endswith("ForSequenceClassification"):
            raise ArtifactError(f"{folder} is no trained sequence classifier: it holds a {name}.")
        if model.num_labels not in (1, 2):
            raise ArtifactError(
                f"{folder} has {model.num_labels} labels; a reranker has one or two."
            )

        self._config = config
        self._model = model
        model.max_seq_length = config.max_tokens

    def warm_up(self) -> None:
        """Score a pair of full length, so that what can never work fails before the first search."""
        config = self._config
        try:
            self.score([("warm", "up"), ("warm", "up " * config.max_tokens)])
        except (IndexError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"the reranker {config.model} cannot read {config.max_tokens} tokens as "
                f"{config.dtype} on {config.device}: {first_line(error)}. Lower max_tokens "
                "(-S reranker.max_tokens) to the positions that the model has, or choose another dtype."
            ) from error

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        """Return finite scores_N of N pairs, else raise ConfigError."""
        from torch.nn import Identity  # noqa: PLC0415 - seconds to import, needed with a reranker alone

        if not pairs:
            return np.zeros(0, dtype=np.float32)
        rows = max(1, self._config.batch_tokens // self._config.max_tokens)
        logits_N = self._model.predict(
            list(pairs), batch_size=rows, activation_fn=Identity(), show_progress_bar=False
        )
        scores_N = logits_N[:, 1] - logits_N[:, 0] if logits_N.ndim == 2 else logits_N

        if not np.isfinite(scores_N).all():
            raise ConfigError(
                f"the reranker {self._config.model} gives scores that are not finite as "
                f"{self._config.dtype}; choose float32 or bfloat16, or another model."
            )

        return scores_N


@dataclass(frozen=True, slots=True)
class RerankedSearcher:
    """A searcher whose ``depth`` best hits a cross-encoder puts in order; equal scores keep the first stage's order.

    The hits after ``depth`` follow in the first stage's order too, each scored one below the hit
    before it. A ``top_k`` above ``depth`` is passed on to the first stage, which may then have
    other hits among its ``depth`` best.
    """

    searcher: SearchesChunks
    reranker: CrossEncoder
    depth: int

    def find_hits(
        self, queries: Sequence[str], top_k: int, where: Filter | None = None
    ) -> list[list[Hit]]:
        """Return for each query at most ``top_k`` >= 1 hits, best first; fewer where the first stage finds fewer.

        Raise QueriesFailedError where the first stage does; its hits are then in the new order.
        """
        try:
            hits_Q = self.searcher.find_hits(queries, max(top_k, self.depth), where)
        except QueriesFailedError as error:
            raise QueriesFailedError(self._rerank_outcomes(queries, error, top_k)) from error

        return self._rerank(queries, hits_Q, top_k)

    def _rerank_outcomes(
        self, queries: Sequence[str], error: QueriesFailedError, top_k: int
    ) -> list[list[Hit] | EndpointError]:
        """Return the outcomes of a search with the hits in the new order; a query that failed has no hits."""
        hits_Q: list[list[Hit]] = []
        for outcome in error.outcomes:
            hits_Q.append([] if isinstance(outcome, EndpointError) else outcome)

        outcomes: list[list[Hit] | EndpointError] = []
        reranked_Q = self._rerank(queries, hits_Q, top_k)
        for outcome, hits in zip(error.outcomes, reranked_Q, strict=True):
            outcomes.append(outcome if isinstance(outcome, EndpointError) else hits)

        return outcomes

    def _rerank(
        self, queries: Sequence[str], hits_Q: Sequence[list[Hit]], top_k: int
    ) -> list[list[Hit]]:
        # The pairs of all queries at once, so that a forward pass is full.
        pairs: list[Pair] = []
        for query, hits in zip(queries, hits_Q, strict=True):
            for hit in hits[: self.depth]:
                pairs.append((query, hit.chunk.contents))

        scores = iter(self.reranker.score(pairs).tolist())
        reranked: list[list[Hit]] = []

        for hits in hits_Q:
            head: list[Hit] = []
            for hit in hits[: self.depth]:
                head.append(Hit(hit.row, next(scores), hit.chunk))

            # Python's sort keeps the first stage's order of equal scores.
            head.sort(key=lambda hit: -hit.score)

            # Below the lowest score of the head, so that scores fall from hit to hit.
            tail: list[Hit] = []
            for distance, hit in enumerate(hits[self.depth :], 1):
                tail.append(Hit(hit.row, head[-1].score - distance, hit.chunk))
            reranked.append((head + tail)[:top_k])

        return reranked
