"""The calls of the converters that veRL and RLinf bring for their own checkpoints.

A pure function; nothing is started here. RLinf has no converter for language models that FSDP
sharded: its own builds embodied models alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.train.verl.checkpoints import merge_command

RLINF = "rlinf.utils.ckpt_convertor.megatron_convertor"
PROCESSES = 8


class Kind(StrEnum):
    """Whose checkpoint it is, and how it is sharded."""

    VERL_FSDP = "verl-fsdp"
    VERL_MEGATRON = "verl-megatron"
    RLINF_MEGATRON = "rlinf-megatron"


# Files of which a checkpoint has one at least
SHARDS: Mapping[Kind, Sequence[str]] = {
    Kind.VERL_FSDP: ("model_world_size_*_rank_*.pt",),
    Kind.VERL_MEGATRON: ("dist_ckpt/*", "model_world_size_*_rank_*.pt", "*.distcp"),
    Kind.RLINF_MEGATRON: ("iter_*/mp_rank_*/model_optim_rng.pt", "mp_rank_*/model_optim_rng.pt"),
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A checkpoint, and what its converter has to be told."""

    kind: Kind
    checkpoint: Path
    python: str
    model: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    rounds: bool = False


def conversion_commands(conversion: Conversion, target: Path, between: Path) -> list[list[str]]:
    """Return the calls, one after the other, that write the weights to ``target`` by way of ``between``.

    Raise ArtifactError where the checkpoint has no shards of its kind, ConfigError for options that
    the converter needs or does not take.
    """
    _require_shards(conversion)
    if conversion.rounds and conversion.kind != Kind.VERL_FSDP:
        raise ConfigError(f"--rounded is for verl-fsdp; {conversion.kind} writes what it finds.")
    parallel = max(conversion.tensor_parallel, conversion.pipeline_parallel)
    if parallel > 1 and conversion.kind != Kind.RLINF_MEGATRON:
        raise ConfigError(
            "--tensor-parallel and --pipeline-parallel are for rlinf-megatron; a checkpoint of "
            f"{conversion.kind} says itself how it is sharded."
        )
    if (conversion.kind == Kind.RLINF_MEGATRON) != (conversion.model is not None):
        raise ConfigError(
            "rlinf-megatron needs --model, the name of the model in RLinf's converter (Qwen2.5-3B), and no other does."
        )

    if conversion.kind == Kind.VERL_FSDP:
        return [_verl(conversion, target, rounds=conversion.rounds)]
    if conversion.kind == Kind.VERL_MEGATRON:
        return [_verl(conversion, target, rounds=True)]
    return _rlinf(conversion, target, between)


def _verl(conversion: Conversion, target: Path, *, rounds: bool) -> list[str]:
    sharding = "megatron" if conversion.kind == Kind.VERL_MEGATRON else "fsdp"
    return merge_command(
        conversion.python, sharding, conversion.checkpoint.absolute(), target, rounds=rounds
    )


def _rlinf(conversion: Conversion, target: Path, between: Path) -> list[list[str]]:
    """Return RLinf's two steps: Megatron's shards to a folder of its own, and that to weights."""
    model_options = ["--model", str(conversion.model), "--use-gpu-num", "0"]
    model_options += ["--process-num", str(PROCESSES)]
    first = [conversion.python, "-m", f"{RLINF}.convert_mg_to_middle_file"]
    first += ["--load-path", str(conversion.checkpoint.absolute()), "--save-path", str(between)]
    first += ["--tp-size", str(conversion.tensor_parallel)]
    first += ["--pp-size", str(conversion.pipeline_parallel), "--ep-size", "1"]
    first += ["--te-ln-linear-qkv", "true", "--te-ln-linear-mlp_fc1", "true"]
    first += ["--te-extra-state-check-none", "true", *model_options]

    second = [conversion.python, "-m", f"{RLINF}.convert_middle_file_to_hf"]
    second += ["--load-path", str(between), "--save-path", str(target), *model_options]
    return [first, second]


def _require_shards(conversion: Conversion) -> None:
    patterns = SHARDS[conversion.kind]
    for pattern in patterns:
        if any(conversion.checkpoint.glob(pattern)):
            return
    raise ArtifactError(
        f"{conversion.checkpoint} has no {' and no '.join(patterns)}, so it is no checkpoint of {conversion.kind}, or "
        "half of one: name the folder `actor` of a step that was saved whole."
    )
