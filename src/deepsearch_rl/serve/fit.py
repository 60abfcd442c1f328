"""Whether the CPU engine can serve a model folder here: architecture, context and memory, before anything is loaded."""

import logging
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_record
from deepsearch_rl.core.hardware import free_memory_bytes
from deepsearch_rl.core.model_config import CONFIG, DTYPE_BYTES, require_context
from deepsearch_rl.core.records import ForeignRecord, Text

_LOG = logging.getLogger(__name__)

# Decoders whose every layer is grouped-query attention, with logits that are the head's own products
# (tests/serve/test_fit.py compares each with transformers)
SUPPORTED = ("llama", "mistral", "olmo2", "qwen2", "qwen3", "qwen3_moe", "smollm3")
MIB, GIB = 2**20, 2**30


class Rope(ForeignRecord):
    """How positions are rotated; older files say ``type``."""

    rope_type: Text = ""
    type: Text = ""


class ModelConfig(ForeignRecord):
    """What is read of a model's config.json."""

    model_type: Text = ""
    hidden_size: int = Field(default=0, ge=0)
    num_hidden_layers: int = Field(default=0, ge=0)
    num_attention_heads: int = Field(default=1, ge=1)
    num_key_value_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=1)
    layer_types: tuple[Text, ...] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    rope_parameters: Rope | None = None
    rope_scaling: Rope | None = None

    @property
    def values_per_token(self) -> int:
        """Numbers that the keys and values of one token hold."""
        heads = self.num_key_value_heads or self.num_attention_heads
        width = self.head_dim or self.hidden_size // self.num_attention_heads
        return 2 * self.num_hidden_layers * heads * width


class Room(NamedTuple):
    """How much a CPU server is told to keep, and the params that say so."""

    slots: int
    context_tokens: int
    dtype: str
    servers: int
    slots_field: str
    context_field: str
    dtype_field: str


def require_fit(folder: Path, room: Room) -> None:
    """Log what the slots of a model folder cost; raise ConfigError where the engine cannot serve it here.

    Raises ArtifactError where config.json is damaged.
    """
    config = read_record(folder / CONFIG, ModelConfig)
    _require_architecture(folder, config, room.context_tokens)
    require_context(folder, {room.context_field: room.context_tokens})
    _require_memory(folder, config, room)


def _require_architecture(folder: Path, config: ModelConfig, context_tokens: int) -> None:
    scaling = config.rope_parameters or config.rope_scaling or Rope()
    # Mistral's older files have a window and no switch
    has_window = config.use_sliding_window
    if has_window is None:
        has_window = config.model_type == "mistral"
    types = set(config.layer_types or ()) - {"full_attention"}

    problem = ""
    if config.model_type not in SUPPORTED:
        problem = f"a {config.model_type or 'nameless'} model"
    elif types:
        problem = f"a {config.model_type} model with layers of {', '.join(sorted(types))}"
    elif has_window and config.sliding_window and config.sliding_window < context_tokens:
        problem = f"a {config.model_type} model with a sliding window of {config.sliding_window}"
    elif {scaling.rope_type, scaling.type} & {"dynamic", "longrope"}:
        problem = f"a {config.model_type} model whose positions depend on the text's length"

    if problem:
        raise ConfigError(
            f"{folder} is {problem}, and the CPU engine serves {', '.join(SUPPORTED)} with full "
            "attention in every layer; serve it with vLLM on a GPU (serving.backend, "
            "rl.backend.device), or name another model."
        )


def _require_memory(folder: Path, config: ModelConfig, room: Room) -> None:
    token_bytes = config.values_per_token * DTYPE_BYTES[room.dtype]
    slot_bytes = room.context_tokens * token_bytes
    weights_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    free_bytes = free_memory_bytes()
    fitting = int((free_bytes / room.servers - weights_bytes) / max(slot_bytes, 1))

    cost = (
        f"a slot of {room.context_tokens} tokens takes {slot_bytes / MIB:.1f} MiB in {room.dtype} "
        f"({token_bytes / 1024:.1f} KiB a token)"
    )
    _LOG.info("%s: %s, %d slots %.2f GiB", folder, cost, room.slots, room.slots * slot_bytes / GIB)
    if fitting >= room.slots:
        return

    servers = f"each of {room.servers} servers" if room.servers > 1 else "the server"
    cheaper = f", or set {room.dtype_field}: bfloat16" if room.dtype == "float32" else ""
    raise ConfigError(
        f"{room.slots_field} is {room.slots}, and {max(fitting, 0)} fit: {cost}, the weights "
        f"{weights_bytes / GIB:.2f} GiB, and of {free_bytes / GIB:.1f} GiB that are free {servers} can "
        f"have {free_bytes / room.servers / GIB:.1f}. Lower {room.slots_field} or "
        f"{room.context_field}{cheaper}."
    )
