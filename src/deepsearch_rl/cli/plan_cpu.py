"""What a model takes on a CPU: its shape, how fast a core multiplies, and the time and memory that follow.

Nothing is loaded: the shape comes from params or a config.json, and the core is timed with products
of that shape. A pass over R tokens multiplies every parameter R times, which 16 tokens do at another
speed than 512; what lies between the products (norms, activations, attention, copies) takes time by
the numbers that it moves. docs/measurements.md has the runs that the constants are from.
"""

import functools
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.model_config import DTYPE_BYTES
from deepsearch_rl.core.profile import Profile

GIB = 2**30

# Of a pass: as many tokens as the engine computes at least, and at most
FEW = 16
MANY = 512
# A chain of products over so many parameters, so that they come from where a model's come from
CHAIN_PARAMETERS = 8e6
REPEATS = 4

# Seconds of a core between the products of a forward pass: by byte of a layer's hidden state,
REST_S = 1.15e-8
# by operation of the attention,
ATTENTION_S = 1.7e-11
# by byte of a row of logits with its loss,
LOGITS_S = 2.8e-9
# and by number that goes into or comes out of a LoRA, which PEFT casts where the model is not in float32
ADAPTER_S = {"float32": 2.3e-9, "bfloat16": 7.5e-9}
# The engine's reading by a plain pass: keys and values are copied, and passes are padded
ENGINE_READING = 1.2
# Of a layer in a step of the engine, whatever it computes
LAYER_S = 0.001
# Bytes of keys and values that a core attends to in a second
ATTENDED_BYTES_S = 5e9
# T cores are T ** this times as fast as one
CORES_POWER = 0.7
# Products of a trained token with a matrix, in passes forward: backward takes another, and the
# gradient of a weight one more
BACKWARD = 1
FULL_UPDATE = 3
# Numbers that backward needs of a token and layer, by those of a token's hidden state and MLP
SAVED_HIDDEN = 10
SAVED_MLP = 4
# Copies of a token's logits: in float32, shifted, their softmax, gradients
LOGITS = 6
# Tokens of the tokenizer of generated worlds beside its subwords
WORLD_WORDS = 1000
# Of a model of which nothing but its size is known: SmolLM2-135M's
USUAL = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([BM])\b")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder with gated MLPs and grouped-query attention; ``source`` says where they were read."""

    source: str
    layers: int
    hidden: int
    mlp: int
    query_width: int
    kv_width: int
    vocabulary: int

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """The matrices of a layer, each (in, out)."""
        attention = [(self.hidden, self.query_width), (self.query_width, self.hidden)]
        attention += [(self.hidden, self.kv_width)] * 2
        return (*attention, *[(self.hidden, self.mlp)] * 2, (self.mlp, self.hidden))

    @property
    def body(self) -> int:
        """Parameters that every token multiplies."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.matrices)

    @property
    def head(self) -> int:
        """Parameters of the output layer, with which the embeddings are tied."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.body + self.head

    def adapter(self, rank: int) -> int:
        """Return the parameters of a LoRA on all matrices of the layers."""
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in self.matrices)

    def slot_gib(self, context_tokens: float, dtype: str) -> float:
        """Return the memory of a conversation's keys and values."""
        return 2 * self.layers * self.kv_width * context_tokens * DTYPE_BYTES[dtype] / GIB

    def weights_gib(self, dtype: str) -> float:
        """Return the memory of the weights."""
        return self.parameters * DTYPE_BYTES[dtype] / GIB

    def update_gib(self, tokens: int, logits: int, rank: int | None, layers: float) -> float:
        """Return the memory of an update beside its weights: activations, logits, trained weights with moments.

        ``tokens`` go through the model at once, ``logits`` of them have logits; without a ``rank``
        all weights are trained. Backward goes through a share of the layers.
        """
        saved = layers * self.layers * (SAVED_HIDDEN * self.hidden + SAVED_MLP * self.mlp)
        trained = self.parameters if rank is None else layers * self.adapter(rank)
        # Weight, gradient and two moments
        numbers = tokens * saved + logits * LOGITS * self.vocabulary + 4 * trained
        return 4 * numbers / GIB


def model_shape(profile: Profile) -> ModelShape | None:
    """Return the shape of the base model that a profile names; None where it names none, or no config.json is there.

    A snapshot that is not in the hub's cache is taken as large as its name says, and as a wider
    SmolLM2. Raise ConfigError for a config.json of another kind of model.
    """
    section = profile.values.get("prepare_model", {})
    match section.get("source"):
        case "pretrain":
            pretrain = section["pretrain"]
            vocabulary = pretrain["subwords"] + WORLD_WORDS
            return _toy_shape(pretrain["model"], vocabulary)
        case "folder":
            return _folder_shape(Path(section["path"], "config.json"))
        case "hub":
            hub = section["hub"]
            cached = try_to_load_from_cache(
                hub["repository"], "config.json", revision=hub["revision"]
            )
            if isinstance(cached, str):
                return _folder_shape(Path(cached))
            return _named_shape(hub["repository"])
        case _:
            return None


def billions(repository: str) -> float:
    """Return the thousand million parameters that a repository's name tells, 0 where it tells none."""
    found = _SIZE.search(repository)
    return float(found[1]) * (1e-3 if found[2] == "M" else 1) if found else 0.0


def _toy_shape(model: Mapping[str, Any], vocabulary: int) -> ModelShape:
    return ModelShape(
        source="prepare_model.pretrain.model",
        layers=model["layers"],
        hidden=model["hidden_size"],
        mlp=model["mlp_size"],
        query_width=model["heads"] * model["head_dim"],
        kv_width=model["kv_heads"] * model["head_dim"],
        vocabulary=vocabulary,
    )


def _folder_shape(file: Path) -> ModelShape | None:
    return _shape_of(read_json(file), str(file)) if file.is_file() else None


def _named_shape(repository: str) -> ModelShape | None:
    parameters = billions(repository) * 1e9
    if not parameters:
        return None
    scale = math.sqrt(parameters / USUAL_SHAPE.parameters)
    widths = ("hidden_size", "intermediate_size", "vocab_size")
    wider = {name: round(USUAL[name] * scale) for name in widths}
    head_dim = round(USUAL_SHAPE.query_width / USUAL["num_attention_heads"] * scale)
    return _shape_of({**USUAL, **wider, "head_dim": head_dim}, f"by the name {repository}")


def _shape_of(config: Mapping[str, Any], source: str) -> ModelShape:
    missing = [name for name in USUAL if name not in config and name != "num_key_value_heads"]
    if missing:
        raise ConfigError(
            f"{source} is of no decoder that can be planned: it has no {', '.join(missing)}."
        )
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return ModelShape(
        source=source,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        mlp=config["intermediate_size"],
        query_width=heads * head_dim,
        kv_width=(config.get("num_key_value_heads") or heads) * head_dim,
        vocabulary=config["vocab_size"],
    )


USUAL_SHAPE = _shape_of(USUAL, "SmolLM2-135M")


@dataclass(frozen=True, slots=True)
class CpuModel:
    """A model on cores that multiply at known speeds: seconds of what a stage does with it.

    ``gflops`` are those of one core, by dtype, for passes of 16 and of 512 tokens.
    """

    shape: ModelShape
    gflops: Mapping[str, tuple[float, float]]

    def read_token_s(self, row: float, dtype: str) -> float:
        """Return what a token of a prompt takes one core, in rows of so many tokens."""
        products = 2 * self.shape.body / self.gflops[dtype][1] / 1e9
        return ENGINE_READING * (products + self._rest_s(row, dtype))

    def write_token_s(self, batch: int, keys: float, dtype: str) -> float:
        """Return what a token of an answer takes one core that writes ``batch`` at once, each after so many tokens."""
        few, many = (2 / rate / 1e9 for rate in self.gflops[dtype])
        # Of passes of 16 and of 512 tokens; the engine pads one to a multiple of 16
        tokens = FEW * math.ceil(batch / FEW)
        token_s = (many * MANY - few * FEW) / (MANY - FEW)
        pass_s = self.shape.parameters * (few * FEW + (tokens - FEW) * token_s)
        pass_s += self.shape.layers * LAYER_S + tokens * self._rest_s(0, dtype)
        return pass_s / batch + self.shape.slot_gib(keys, dtype) * GIB / ATTENDED_BYTES_S

    def train_token_s(
        self,
        row: float,
        dtype: str,
        logits_share: float,
        *,
        passes: float = 1,
        lora: tuple[int, float] | None = None,
    ) -> float:
        """Return what a token of rows of so many tokens takes one core in an update, after other passes.

        A share of the tokens has logits. ``lora`` is a rank, and the share of the layers, the last,
        that it is on and that backward goes through; without it all weights are trained.
        """
        shape = self.shape
        rank, layers = lora or (0, 1.0)
        backward = layers * BACKWARD if lora else FULL_UPDATE - 1
        computed = passes + backward
        head = passes + (BACKWARD if lora else FULL_UPDATE - 1)
        parameters = computed * shape.body + head * logits_share * shape.head
        parameters += FULL_UPDATE * layers * shape.adapter(rank)
        moved_s = layers * shape.adapter(1) * ADAPTER_S[dtype] if lora else 0.0
        moved_s += computed * self._rest_s(row, dtype)
        moved_s += logits_share * shape.vocabulary * DTYPE_BYTES[dtype] * LOGITS_S
        return 2 * parameters / self.gflops[dtype][1] / 1e9 + moved_s

    def _rest_s(self, row: float, dtype: str) -> float:
        """Return what a token takes between the products of a forward pass over rows of so many tokens."""
        moved_s = self.shape.layers * self.shape.hidden * DTYPE_BYTES[dtype] * REST_S
        # Scores and values, each a product with half of the row
        attended = 2 * 2 * self.shape.layers * self.shape.query_width * row / 2
        return moved_s + attended * ATTENTION_S


def cores(threads: int | None, processes: int = 1) -> float:
    """Return how many times as fast as one core a stage is, with so many threads in each of its processes."""
    here = os.cpu_count() or 1
    each = min(threads or here, max(1, here // processes))
    return each**CORES_POWER * min(processes, here)


@functools.cache
def measured_gflops(shape: ModelShape, dtype: str) -> tuple[float, float]:
    """Time one core on the products of a model's layers; return GFLOP/s for passes of 16 and of 512 tokens.

    It takes a second. Only the core's own time counts, so that other work on the machine does not.
    """
    # A second to import, which other commands do not need
    import torch  # noqa: PLC0415

    layer = sum(inputs * outputs for inputs, outputs in shape.matrices)
    layers = min(shape.layers, math.ceil(CHAIN_PARAMETERS / layer))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            kind = getattr(torch, dtype)
            weights = [
                torch.ones(outputs, inputs, dtype=kind)
                for _ in range(layers)
                for inputs, outputs in shape.matrices
            ]
            rates: list[float] = []
            for tokens in (FEW, MANY):
                inputs = {
                    weight.shape[1]: torch.ones(tokens, weight.shape[1], dtype=kind)
                    for weight in weights
                }
                seconds: list[float] = []
                for _ in range(REPEATS * (1 if tokens == MANY else 5)):
                    start = time.thread_time()
                    for weight in weights:
                        torch.nn.functional.linear(inputs[weight.shape[1]], weight)
                    seconds.append(time.thread_time() - start)

                rates.append(2 * tokens * layers * layer / min(seconds) / 1e9)
    finally:
        torch.set_num_threads(threads)

    return rates[0], rates[1]
