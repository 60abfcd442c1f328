"""Any transformers encoder folder, e.g. e5-base-v2."""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.errors import ArtifactError, UnavailableError
from deepsearch_rl.records import NonEmpty, Record
from deepsearch_rl.retrieval.encoders.encoder import Kind, normalise_rows

ItemT = TypeVar("ItemT")


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
