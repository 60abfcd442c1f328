"""Encoders that transformers loads: any sentence-transformers folder (e5, bge, MiniLM, ...) or a plain one."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from deepsearch_rl.errors import ArtifactError, UnavailableError
from deepsearch_rl.retrieval.encoders.batching import embed_by_length
from deepsearch_rl.retrieval.encoders.encoder import Kind, encode_readable
from deepsearch_rl.retrieval.encoders.model_folder import ModelFolder, ModelFolderConfig, read_model_folder


class TransformersConfig(ModelFolderConfig):
    """An encoder with its tokenizer, computed by torch."""

    name: Literal["transformers"]
    dtype: Literal["float32", "float16", "bfloat16"]

    @model_validator(mode="after")
    def _no_emulated_precision(self) -> "TransformersConfig":
        # bfloat16 is what recent CPUs multiply natively (AVX512-BF16, AMX): three times the speed of float32 there. It
        # has three decimal digits, so that near ties may fall otherwise in another batch.
        if self.device == "cpu" and self.dtype == "float16":
            raise ValueError("dtype float16 is for device cuda: CPUs emulate it, slower than float32")
        return self


class TransformersEncoder:
    """Pooled last hidden states of a BERT-like encoder, with a prefix per side (E5, Wang et al. 2022)."""

    def __init__(self, config: TransformersConfig) -> None:
        """Load the model and set torch's number of threads, which is the process's.

        Raises:
            UnavailableError: the device is ``cuda`` and there is none, or a hub's revision is not here.
            ArtifactError: the folder holds no loadable encoder.
            ConfigError: pooling or length do not fit the folder.
        """
        import torch  # noqa: PLC0415 - seconds to import, needed by this encoder alone

        if config.device == "cuda" and not torch.cuda.is_available():
            raise UnavailableError(
                f"the encoder {config.model} is to run on a GPU (index.encoder.device: cuda), and torch finds none; "
                f"attach one or set the device to cpu."
            )
        torch.set_num_threads(config.threads)
        self._config, self._folder = config, read_model_folder(config, "*.safetensors")
        self._tokenizer, self._model = _load(self._folder, getattr(torch, config.dtype))
        self._model.to(config.device).eval()

    @property
    def dimension(self) -> int:
        """The model's hidden size."""
        return self._model.config.hidden_size

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Embeddings_ND of N texts, each with its side's prefix; blank texts are zero."""
        return encode_readable(texts, self.dimension, lambda readable: self._embed_texts(readable, kind))

    def _embed_texts(self, texts: list[str], kind: Kind) -> NDArray[np.float32]:
        prompted = self._folder.prompted(texts, kind)
        tokens = self._tokenizer(prompted, truncation=True, max_length=self._folder.max_tokens)["input_ids"]
        return embed_by_length(tokens, self._config.batch_tokens, self._folder.pad_id, self._embed)

    def _embed(self, ids_BT: NDArray[np.int64], mask_BT: NDArray[np.int64]) -> NDArray[np.float32]:
        import torch  # noqa: PLC0415

        ids, mask = (torch.from_numpy(array_BT).to(self._config.device) for array_BT in (ids_BT, mask_BT))
        with torch.inference_mode():
            hidden_BTD = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            if self._folder.pooling == "cls":
                return hidden_BTD[:, 0].cpu().numpy()
            mask_BT1 = mask.unsqueeze(-1).float()
            return ((hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1)).cpu().numpy()


def _load(folder: ModelFolder, dtype: Any) -> tuple[Any, Any]:
    """Tokenizer and model; transformers leaves both untyped."""
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - seconds to import

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder.transformer, local_files_only=True)
        model = AutoModel.from_pretrained(folder.transformer, dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ArtifactError(f"{folder.root} holds no encoder that transformers can load: {reason}") from error
    if model.config.is_encoder_decoder:
        raise ArtifactError(f"{folder.root} holds an encoder with a decoder; only plain encoders can be used here.")
    return tokenizer, model
