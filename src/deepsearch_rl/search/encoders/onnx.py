"""Encoders exported to ONNX, by onnxruntime without torch, so that a server starts in a second.

A folder holds ``model.onnx`` (or ``onnx/model.onnx``) and ``tokenizer.json``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnavailableError, install_hint
from deepsearch_rl.search.encoders.batches import ParallelBatches
from deepsearch_rl.search.encoders.configs import OnnxConfig
from deepsearch_rl.search.encoders.encoder import Kind, Vectors, encode_readable, first_line
from deepsearch_rl.search.encoders.model_folder import (
    ModelFolder,
    read_model_folder,
)

# Where an export is in a folder, the first that is there
EXPORTS = (Path("model.onnx"), Path("onnx") / "model.onnx")
# What exporters call the vectors of the tokens
HIDDEN_OUTPUTS = ("last_hidden_state", "token_embeddings")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
STEPS = {"Transformer", "Pooling", "Normalize"}
POOLINGS = ("mean", "cls", "lasttoken")


class OnnxEncoder:
    """Pooled token vectors of an exported encoder, with a prefix per side."""

    def __init__(self, config: OnnxConfig) -> None:
        """Load the model; raise as :func:`read_model_folder` and :func:`_load`.

        Raises:
            ArtifactError: the folder holds no export with token vectors.
            ConfigError: it has a step or a pooling that is computed by torch alone.
        """
        self._folder = folder = read_model_folder(config, "*model.onnx*")
        advice = "which only the encoder `transformers` computes"

        if steps := folder.steps - STEPS:
            raise ConfigError(
                f"the encoder in {folder.root} has a step {min(steps)} (modules.json), {advice}."
            )

        if folder.pooling not in POOLINGS or not folder.pools_prompt:
            prompt = "" if folder.pools_prompt else " without the prompt"
            raise ConfigError(
                f"the encoder in {folder.root} pools tokens by {folder.pooling}{prompt}, {advice}."
            )

        self._batches = ParallelBatches(
            config.used_batch_tokens, config.pass_tokens, config.used_threads
        )
        self._tokenizer, self._session = _load(folder, config)
        self._inputs = [node.name for node in self._session.get_inputs()]
        outputs = [node.name for node in self._session.get_outputs()]
        hidden = [name for name in HIDDEN_OUTPUTS if name in outputs]

        if not hidden or not set(self._inputs) <= set(INPUTS):
            raise ArtifactError(
                f"the export in {folder.root} maps {', '.join(self._inputs)} to {', '.join(outputs)}; an encoder "
                f"takes some of {', '.join(INPUTS)} and gives {' or '.join(HIDDEN_OUTPUTS)}: "
                f"it was not exported for feature extraction."
            )

        self._hidden = hidden[0]

        # Exports do not name their dimension, so one token is embedded.
        one_11 = np.ones((1, 1), dtype=np.int64)
        self.dimension = self._embed(one_11, one_11).shape[1]

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Return embeddings_ND of N texts, each with its side's prefix; blank texts are zero."""
        return encode_readable(
            texts, self.dimension, lambda readable: self._embed_texts(readable, kind)
        )

    def _embed_texts(self, texts: list[str], kind: Kind) -> Vectors:
        """Embed in batches of texts of nearly one length, the longest first."""
        prefix = self._folder.prefixes[kind]
        inputs: list[str] = []
        for text in texts:
            prompted = prefix + text
            inputs.append(prompted.lower() if self._folder.lower_case else prompted)

        encodings = self._tokenizer.encode_batch(inputs)
        lengths_N = [len(encoding) for encoding in encodings]

        def embed(batch: list[int]) -> Vectors:
            ids_BT = np.full((len(batch), lengths_N[batch[0]]), self._folder.pad_id, np.int64)
            mask_BT = np.zeros_like(ids_BT)
            for place, row in enumerate(batch):
                ids_BT[place, : lengths_N[row]] = encodings[row].ids
                mask_BT[place, : lengths_N[row]] = 1

            return self._embed(ids_BT, mask_BT)

        return self._batches.embed(lengths_N, self.dimension, embed)

    def _embed(self, ids_BT: NDArray[np.int64], mask_BT: NDArray[np.int64]) -> Vectors:
        # Every text is one segment, so the type of all its tokens is 0. Some exports take no types.
        arrays = dict(zip(INPUTS, (ids_BT, mask_BT, np.zeros_like(ids_BT)), strict=True))
        inputs = {name: arrays[name] for name in self._inputs}
        [hidden_BTD] = self._session.run([self._hidden], inputs)

        if self._folder.pooling == "mean":
            mask_BT1 = mask_BT[:, :, None].astype(np.float32)
            return (hidden_BTD * mask_BT1).sum(axis=1, dtype=np.float32) / mask_BT1.sum(axis=1)

        # Padding is on the right
        position_B = 0 if self._folder.pooling == "cls" else mask_BT.sum(axis=1) - 1
        return hidden_BTD[np.arange(len(hidden_BTD)), position_B].astype(np.float32)


def find_export(folder: Path) -> Path | None:
    """Return the path of an export inside its folder; None where there is none."""
    return next((path for path in EXPORTS if (folder / path).is_file()), None)


def _load(folder: ModelFolder, config: OnnxConfig) -> tuple[Any, Any]:
    """Return a tokenizer that cuts at the folder's length and pads nothing, and a session; neither has types."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - needed by this encoder alone

    try:
        import onnxruntime  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UnavailableError(
            f"the encoder onnx needs onnxruntime: {install_hint('onnx')}."
        ) from error

    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}[config.device]

    if provider not in onnxruntime.get_available_providers():
        raise UnavailableError(
            f"the encoder {config.model} is to run on a GPU (index.encoder.device: cuda), and onnxruntime has no "
            f"{provider}; install onnxruntime-gpu in onnxruntime's place, or set the device to cpu."
        )

    export = find_export(folder.root)
    if export is None:
        raise ArtifactError(f"{folder.root} holds neither model.onnx nor onnx/model.onnx.")

    model_path = folder.root / export
    options = onnxruntime.SessionOptions()
    # Of a pass; several run side by side
    options.intra_op_num_threads = 1

    # The errors of both libraries have no other root than Exception.
    try:
        session = onnxruntime.InferenceSession(model_path, options, providers=[provider])
    except Exception as error:
        raise ArtifactError(f"{model_path} cannot be loaded: {first_line(error)}.") from error

    path = folder.transformer / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ArtifactError(
            f"{path}, which belongs beside an ONNX export, cannot be read: {error}."
        ) from error

    tokenizer.enable_truncation(folder.max_tokens)
    tokenizer.no_padding()
    return tokenizer, session
