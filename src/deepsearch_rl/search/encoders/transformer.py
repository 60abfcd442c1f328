"""Encoders with weights, by sentence-transformers on torch.

Any sentence-transformers folder serves (e5, bge, MiniLM, Qwen3-Embedding, ...), whatever its
pooling and further steps, and so does a plain transformers folder.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.search.encoders.batches import ParallelBatches
from deepsearch_rl.search.encoders.configs import TransformersConfig
from deepsearch_rl.search.encoders.encoder import Kind, Vectors, encode_readable, first_line
from deepsearch_rl.search.encoders.model_folder import (
    read_model_folder,
    require_device,
)

# Texts that are tokenized at once: their tokens are padded to the longest of them
TOKENIZED_TEXTS = 1024


class TransformersEncoder:
    """Sentence vectors of an encoder with weights, with a prefix per side (E5, Wang et al. 2022)."""

    def __init__(self, config: TransformersConfig) -> None:
        """Load the model and set the process's torch threads to one; raise as :func:`read_model_folder`.

        Raise UnavailableError without the device, ArtifactError where nothing can be loaded.
        """
        import torch  # noqa: PLC0415 - seconds to import, needed by this encoder alone
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - and seconds more
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415

        from deepsearch_rl.search.encoders.packing import (  # noqa: PLC0415 - torch
            keep_freed_memory,
            pack_linear_layers,
        )

        require_device(config.device, f"the encoder {config.model}", "index.encoder.device")
        torch.set_num_threads(1)
        threads = config.used_threads if config.device == "cpu" else 1
        self._batches = ParallelBatches(config.used_batch_tokens, config.pass_tokens, threads)
        self._folder = folder = read_model_folder(config, "*.safetensors")
        # As many of the longest texts as the budget holds
        self._rows = max(1, config.used_batch_tokens // folder.max_tokens)
        path = str(folder.root)
        dtype = {"dtype": getattr(torch, config.dtype)}

        try:
            if folder.steps:
                self._model = SentenceTransformer(
                    path, device=config.device, local_files_only=True, model_kwargs=dtype
                )
            else:
                # A plain folder: transformer and pooling
                transformer = Transformer(path, do_lower_case=folder.lower_case, model_kwargs=dtype)
                dimension = transformer.get_embedding_dimension()
                pooling = Pooling(dimension, folder.pooling)  # pyright: ignore[reportArgumentType] - checks the name
                self._model = SentenceTransformer(
                    modules=[transformer, pooling], device=config.device
                )
        except (OSError, ValueError, TypeError) as error:
            raise ArtifactError(
                f"{path} holds no encoder that can be loaded: {first_line(error)}"
            ) from error

        self._model.eval()
        if config.device == "cpu":
            pack_linear_layers(self._model)
            keep_freed_memory()

        self._model.max_seq_length = folder.max_tokens
        self.dimension = self._model.get_embedding_dimension() or 0
        # Features to embeddings_BD, a tensor
        self._run: Callable[[dict[str, Any]], Any] = partial(_run, self._model)
        # To leave a prompt out of the pooling is to wait for the GPU, which no graph can
        if config.device == "cuda" and folder.pools_prompt:
            from deepsearch_rl.search.encoders.cuda_graphs import (  # noqa: PLC0415 - torch
                GraphedModel,
            )

            self._run = GraphedModel(self._run, folder.max_tokens, folder.pad_id)

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Return embeddings_ND of N texts, each with its side's prefix; blank texts are zero."""
        return encode_readable(
            texts, self.dimension, lambda readable: self._embed_texts(readable, kind)
        )

    def _embed_texts(self, texts: list[str], kind: Kind) -> Vectors:
        """Embed in batches of texts of nearly one length, the longest first.

        sentence-transformers' own ``encode`` has a fixed number of texts in a batch: few enough for
        the longest ones are too few for queries.
        """
        embeddings_ND = np.empty((len(texts), self.dimension), dtype=np.float32)
        order_N = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        for start in range(0, len(texts), TOKENIZED_TEXTS):
            rows = order_N[start : start + TOKENIZED_TEXTS]
            embeddings_ND[rows] = self._embed_some([texts[row] for row in rows], kind)

        return embeddings_ND

    def _embed_some(self, texts: list[str], kind: Kind) -> Vectors:
        prompt = self._folder.prefixes[kind]
        features: dict[str, Any] = self._model.preprocess(texts, prompt=prompt)
        mask_BT = features.get("attention_mask")

        # A model that is no transformer, or one that packs its texts itself
        if mask_BT is None or len(mask_BT) != len(texts):
            return self._model.encode(
                texts, prompt=prompt, batch_size=self._rows, show_progress_bar=False
            )

        lengths_B = mask_BT.sum(dim=1).tolist()
        return self._batches.embed(
            lengths_B, self.dimension, lambda batch: self._forward(_part(features, batch))
        )

    def _forward(self, features: dict[str, Any]) -> Vectors:
        import torch  # noqa: PLC0415

        with torch.inference_mode():
            return self._run(features).cpu().numpy()


def _run(model: Any, features: dict[str, Any]) -> Any:
    """Return embeddings_BD of features, a float32 tensor on the model's device."""
    import torch  # noqa: PLC0415

    inputs: dict[str, Any] = {}
    for name, value in features.items():
        is_tensor = isinstance(value, torch.Tensor)
        inputs[name] = value.to(model.device) if is_tensor else value

    return model(inputs)["sentence_embedding"].float()


def _part(features: dict[str, Any], batch: list[int]) -> dict[str, Any]:
    """Return the features of some rows, without the columns that are padding in all of them."""
    # Padding is on the right, and on the left for some decoders
    mask_NT = features["attention_mask"]
    columns_T = mask_NT[batch].any(dim=0).nonzero()
    columns = slice(int(columns_T[0]), int(columns_T[-1]) + 1)
    part: dict[str, Any] = {}
    for name, value in features.items():
        is_of_tokens = getattr(value, "shape", None) == mask_NT.shape
        part[name] = value[batch][:, columns] if is_of_tokens else value

    return part
