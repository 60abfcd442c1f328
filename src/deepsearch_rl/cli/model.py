"""``deepsearch model``: sharded checkpoints of veRL and RLinf as folders that serve, by the owner's own converter."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.cli.model_converters import Conversion, Kind, conversion_commands
from deepsearch_rl.cli.targets import writable_folder
from deepsearch_rl.core.errors import ArtifactError, CommandError
from deepsearch_rl.core.files import atomic_directory, require_new_folder
from deepsearch_rl.core.processes import ProcessGuard, last_lines
from deepsearch_rl.train.model_folder import complete_folder

SOURCES = Path(__file__).resolve().parents[2]

app = typer.Typer(no_args_is_help=True, help="Checkpoints of other trainers as model folders.")


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
            help="Model folder to write; it must not exist, or be empty.", callback=writable_folder
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
