"""Forward passes of small batches on a GPU, each started as one CUDA graph.

A forward pass of an encoder starts hundreds of kernels. For a few queries each of them runs for some
microseconds, and Python takes longer to start it. A CUDA graph, recorded once, starts all of them
together. It has inputs of one shape, so that batches are padded to the next one of a few shapes.
Larger batches run as they come: their kernels take longer than their start.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from deepsearch_rl.search.encoders.encoder import first_line

logger = logging.getLogger(__name__)

# Tokens of a text, padding counted; longer texts have no graph
GRAPH_LENGTHS = (16, 32, 64, 128)

# Most tokens of a graph's batch. From here on a GPU is busy for longer than Python starts kernels.
GRAPH_TOKENS = 8192

# Passes before the recording, in which libraries take their workspaces and choose their kernels
WARM_UPS = 2

# A recording ends where another one of the process begins
_RECORDING = threading.Lock()


def graph_shape(texts: int, tokens: int, max_tokens: int) -> tuple[int, int] | None:
    """Return the shape, texts x tokens, that a batch is padded to; None where it has no graph.

    No shape is longer than ``max_tokens``: the model may have no more positions.
    """
    rows = 1 << (texts - 1).bit_length()
    for length in GRAPH_LENGTHS:
        columns = min(length, max_tokens)
        if tokens <= columns:
            return (rows, columns) if rows * columns <= GRAPH_TOKENS else None

    return None


def pad_features(
    features: Mapping[str, Any], shape: tuple[int, int], pad_id: int
) -> dict[str, Any]:
    """Return the features of a batch, all tensors of texts x tokens, in a shape that is at least as large.

    Further columns are padding on the right, also where the tokenizer pads on the left: no token
    changes its position. Further rows are copies of the first one: a row without a token would
    divide by zero.
    """
    texts, tokens = features["attention_mask"].shape
    padded: dict[str, Any] = {}

    for name, value in features.items():
        padded[name] = value
        if isinstance(value, torch.Tensor):
            filled_BT = value.new_full(shape, pad_id if name == "input_ids" else 0)
            filled_BT[:texts, :tokens] = value
            filled_BT[texts:] = filled_BT[0]
            padded[name] = filled_BT

    return padded


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recorded pass: it reads ``inputs`` and writes ``embeddings_BD``."""

    graph: torch.cuda.CUDAGraph
    inputs: dict[str, torch.Tensor]
    embeddings_BD: torch.Tensor

    def replay(self, features: Mapping[str, Any]) -> torch.Tensor:
        """Return embeddings_BD of features of the recorded shape; the next replay writes over them."""
        for name, value in self.inputs.items():
            value.copy_(features[name])

        self.graph.replay()
        return self.embeddings_BD


class GraphedModel:
    """A model on a GPU whose passes of small batches are recorded when their shape first comes.

    ``run`` is the model's pass: it takes features to embeddings_BD on the GPU, and reads nothing else
    that changes. A shape is recorded in some tenths of a second. Where a pass cannot be recorded,
    because it waits for the GPU in its middle or memory is short, all later batches run as they come.
    """

    def __init__(
        self, run: Callable[[dict[str, Any]], torch.Tensor], max_tokens: int, pad_id: int
    ) -> None:
        self._run = run
        self._max_tokens = max_tokens
        self._pad_id = pad_id
        # Recordings share the memory of what they compute on the way: no two of them run at once
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()
        self._lock = threading.Lock()
        self._recorded: dict[tuple[tuple[int, int], str], _Recorded] = {}
        self._can_record = True

    @torch.inference_mode()
    def __call__(self, features: dict[str, Any]) -> torch.Tensor:
        """Return embeddings_BD on the CPU of features; any thread may ask."""
        mask_BT = features["attention_mask"]
        texts, tokens = mask_BT.shape
        shape = graph_shape(texts, tokens, self._max_tokens)
        tensors = [value for value in features.values() if isinstance(value, torch.Tensor)]
        if shape is not None and all(value.shape == mask_BT.shape for value in tensors):
            padded = pad_features(features, shape, self._pad_id)
            with self._lock:
                recorded = self._find_or_record(shape, padded)
                if recorded is not None:
                    return recorded.replay(padded)[:texts].cpu()

        return self._run(features).cpu()

    def _find_or_record(
        self, shape: tuple[int, int], padded: Mapping[str, Any]
    ) -> _Recorded | None:
        """Return the recording for the shape and for whatever is no tensor; None if there can be none."""
        settings: dict[str, Any] = {}
        for name, value in padded.items():
            settings[name] = None if isinstance(value, torch.Tensor) else value

        key = (shape, repr(settings))
        if key not in self._recorded and self._can_record:
            # The end of a failed one, too: none can begin before that
            with _RECORDING:
                try:
                    self._recorded[key] = self._record(padded)
                except RuntimeError as error:
                    self._can_record = False
                    self._end_recording()
                    logger.warning(
                        "an encoder's passes cannot be recorded as CUDA graphs (%s); queries take milliseconds longer",
                        first_line(error),
                    )

        return self._recorded.get(key)

    def _record(self, padded: Mapping[str, Any]) -> _Recorded:
        inputs: dict[str, torch.Tensor] = {}
        for name, value in padded.items():
            if isinstance(value, torch.Tensor):
                inputs[name] = value.to("cuda")

        features = {**padded, **inputs}
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        # A recording that fails leaves its stream current; this block ends that
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                self._run(features)

            # Other threads may use the GPU meanwhile
            with torch.cuda.graph(
                graph, self._memory, self._stream, capture_error_mode="thread_local"
            ):
                embeddings_BD = self._run(features)

        torch.cuda.current_stream().wait_stream(self._stream)
        return _Recorded(graph, inputs, embeddings_BD)

    def _end_recording(self) -> None:
        """Let the process free memory again, which torch refuses from a failed recording on."""
        device = torch.cuda.current_device()
        # Torch has no public functions for this, and may come to lack these. The first one raises
        # RuntimeError where the recording did end, or never began.
        with suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(device, self._memory)
            torch._C._cuda_releasePool(device, self._memory)
