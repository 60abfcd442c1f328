"""What a model folder's config.json says without loading a model: the longest sequence; and the bytes of a number."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_json

CONFIG = "config.json"
# Bytes of a number
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


def require_context(folder: Path, needed: Mapping[str, int]) -> None:
    """Raise ConfigError where params ask for longer sequences than a model's positions reach.

    Args:
        folder: a model folder.
        needed: tokens, by the name of the field that asks for them.
    """
    limit = context_limit(read_json(folder / CONFIG))
    for field, tokens in needed.items():
        if limit is not None and tokens > limit:
            raise ConfigError(
                f"{field} is {tokens}, and {folder} reads at most {limit} tokens "
                f"(max_position_embeddings of its config.json); lower it."
            )


def context_limit(config: dict[str, Any]) -> int | None:
    """Return the longest sequence that a model's config.json allows; None where it does not say.

    YaRN's factor counts, as Qwen's documentation sets it: beside the positions of pretraining.
    """
    limit = config.get("max_position_embeddings")
    if not isinstance(limit, int):
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    original = rope.get("original_max_position_embeddings")
    if original and rope.get("factor"):
        return max(limit, int(original * rope["factor"]))
    return limit
