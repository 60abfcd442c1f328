"""``deepsearch model``: sharded checkpoints of veRL and RLinf as folders that serve, by the owner's own converter.

RLinf has no converter for language models that FSDP sharded: its own builds embodied models alone.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.core.errors import ArtifactError, CommandError, ConfigError
from deepsearch_rl.core.files import atomic_directory, require_new_folder
from deepsearch_rl.core.processes import ProcessGuard, last_lines
from deepsearch_rl.train.model_folder import complete_folder
from deepsearch_rl.train.verl.checkpoints import merge_command

SOURCES = Path(__file__).resolve().parents[2]

RLINF = "rlinf.utils.ckpt_convertor.megatron_convertor"

PROCESSES = 8

app = typer.Typer(no_args_is_help=True, help="Checkpoints of other trainers as model folders.")


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


@app.callback()
def group() -> None:
    """Keep `convert` a subcommand, although it is the only one."""


@app.command("convert")
def convert_command(
    checkpoint: Annotated[
        Path, typer.Argument(help="Folder of the policy's shards: `global_step_N/actor`.")
    ],
    out: Annotated[
        Path,
        typer.Argument(
            help="Model folder to write; it must not exist, or be empty.",
            file_okay=False,
            writable=True,
        ),
    ],
    kind: Annotated[Kind, Option("--from", help="Whose checkpoint it is.")],
    start: Annotated[
        Path, Option(help="Folder of the start model: its tokenizer, template and settings.")
    ],
    python: Annotated[
        str, Option(help="Python of the owner's environment, which has its converter.")
    ],
    model: Annotated[
        str | None,
        Option(help="rlinf-megatron: the model's name in RLinf's converter, e.g. Qwen2.5-3B."),
    ] = None,
    tensor_parallel: Annotated[int, Option(help="rlinf-megatron: as it was trained.", min=1)] = 1,
    pipeline_parallel: Annotated[int, Option(help="rlinf-megatron: as it was trained.", min=1)] = 1,
    rounded: Annotated[
        bool, Option("--rounded", help="verl-fsdp: bfloat16, as veRL's merger writes by itself.")
    ] = False,
) -> None:
    """Turn a checkpoint of veRL or RLinf into a model folder that `evaluate`, `ask` and the stages read.

    The owner's own converter runs in its environment; then the folder gets the start model's
    tokenizer, chat template and settings. Nothing is left where a step fails.

        deepsearch model convert step/actor out --from verl-fsdp --start models/base --python .venvs/verl/bin/python
    """
    conversion = Conversion(
        kind=kind,
        checkpoint=checkpoint,
        python=python,
        model=model,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        rounds=rounded,
    )
    convert(conversion, start, out)
    typer.echo(f"{out}: {len(list(out.glob('*.safetensors')))} files of weights.")


def convert(conversion: Conversion, start: Path, out: Path) -> None:
    """Write the model folder.

    Raises:
        ArtifactError: the checkpoint has no shards, or the folder is not whole afterwards.
        ConfigError: the converter needs an option that is missing, or ``out`` holds files.
        CommandError: the converter failed, with its last lines.
    """
    require_new_folder(out)
    for name in ("config.json", "tokenizer.json"):
        if not (start / name).is_file():
            raise ArtifactError(
                f"--start {start} has no {name}: name the model that RL began with."
            )

    with atomic_directory(out) as partial:
        merged = partial / "merged"
        log = out.with_name(f"{out.name}.convert.txt")
        log.unlink(missing_ok=True)
        for command in conversion_commands(conversion, merged, partial / "between"):
            _run(command, log)

        shutil.rmtree(partial / "between", ignore_errors=True)
        if not (merged / "config.json").is_file():
            shutil.copyfile(start / "config.json", merged / "config.json")
        complete_folder(start, merged, merged)
        for path in merged.iterdir():
            path.rename(partial / path.name)
        merged.rmdir()
    log.unlink()


def _run(command: Sequence[str], log: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": _paths(), "HF_HUB_OFFLINE": "1"}
    with ProcessGuard() as guard, log.open("a", encoding="utf-8") as output:
        process = guard.start(command, environment=environment, output=output)
        process.wait()
    if process.returncode:
        module = command[command.index("-m") + 1]
        raise CommandError(
            f"{module} ended with exit code {process.returncode}; its output is in {log}, the end is:\n"
            f"{last_lines(log)}"
        )


def _paths() -> str:
    return os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH", "")]))


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
