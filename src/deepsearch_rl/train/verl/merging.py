"""A checkpoint of veRL's as weights in Hugging Face's layout: the call of veRL's own converter."""

from pathlib import Path
from typing import Literal

Sharding = Literal["fsdp", "megatron"]


def merge_command(
    python: str, sharding: Sharding, actor: Path, target: Path, *, rounds: bool
) -> list[str]:
    """Return the call that merges the shards of a checkpoint's ``actor`` folder into ``target``.

    ``rounds``: bfloat16 whatever the weights are, as veRL's merger does by itself.
    """
    merger = "verl.model_merger" if rounds else "deepsearch_rl.train.verl.convert"
    command = [python, "-u", "-m", merger, "merge", "--backend", sharding]
    return [*command, "--local_dir", str(actor), "--target_dir", str(target)]
