"""``deepsearch rl``: runs of the stage rl with their checkpoints, and new runs that begin at one of them."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from deepsearch_rl.cli.defaults import changed_field
from deepsearch_rl.cli.folders import folder_bytes
from deepsearch_rl.cli.planning.whole_run import BASE_MODEL, blocked_stage, run_command
from deepsearch_rl.cli.profile_argument import ProfileName, ProfileOption
from deepsearch_rl.cli.rl_compare import compare_command
from deepsearch_rl.cli.terminal import print_table
from deepsearch_rl.core.errors import ArtifactError, UnknownNameError
from deepsearch_rl.core.profile import PARAMS, dvc_file, find_profile, require_profile

app = typer.Typer(
    no_args_is_help=True,
    help="Runs of RL, their checkpoints, and new runs that begin at one of them.",
)
app.command("compare")(compare_command)


@app.command("runs")
def runs_command(
    profile: ProfileName = "tiny",
) -> None:
    """List what has trained: steps, the best score on dev, and the steps whose checkpoints are kept.

    Finished runs are kept in `work/<profile>/rl_runs/`, and those that were cut off in the scratch
    folders of the stage; the one that trained last comes first. `deepsearch clean --runs` removes
    those that nobody wants to fork.

        deepsearch rl runs
    """
    from deepsearch_rl.core.files import read_jsonl  # noqa: PLC0415
    from deepsearch_rl.train.curves import TrainingStep  # noqa: PLC0415
    from deepsearch_rl.train.rl.checkpoints import checkpoints  # noqa: PLC0415
    from deepsearch_rl.train.rl.run_log import TRAIN_LOG, best_line  # noqa: PLC0415

    require_profile(Path(), profile)
    rows = []

    for name, run in _require_runs(Path("work", profile), profile).items():
        lines = list(read_jsonl(run / TRAIN_LOG, TrainingStep))
        size_mb = folder_bytes(run) / 1e6
        best = best_line(lines)
        row = [name, str(lines[-1].step), f"{best.dev_f1:.3f} ({best.step})"]
        row += [" ".join(map(str, checkpoints(run))), f"{size_mb:.0f} MB"]
        rows.append(row)

    print_table("", ["run", "steps", "best dev F1 (step)", "checkpoints", "size"], rows)


@app.command("fork")
def fork_command(
    run: Annotated[
        str, Argument(help="A run of `deepsearch rl runs`, or a start for the newest run from it.")
    ],
    step: Annotated[
        int, Argument(min=0, help="A step whose checkpoint is kept, see `deepsearch rl runs`.")
    ],
    profile: ProfileOption = "tiny",
    changes: Annotated[
        list[str] | None,
        Option("--set-param", "-S", help="field=value, as for `dvc exp run`.", show_default="none"),
    ] = None,
) -> None:
    """Have the next run of the stage rl with other params begin at a checkpoint of an earlier run.

    The params are those of the profile with the changes of -S. They get a folder of their own with
    weights, optimizer and log up to the step; the command that then trains is printed. The model's
    manifest says where it was forked from.

        deepsearch rl runs
        deepsearch rl fork sft 10 -S rl.learning_rate=5e-4
        deepsearch rl fork sft-0123456789ab 40 -S rl.steps.sft=80
    """
    from deepsearch_rl.train.rl.fork import fork_run  # noqa: PLC0415 - transformers

    settings = find_profile(Path(), profile).with_overrides(dict(map(changed_field, changes or [])))
    try:
        source, target = fork_run(settings, run, step, Path())
    except UnknownNameError:
        _require_runs(settings.work, profile)
        raise

    typer.echo(
        f"{target.start_name}-{target.scratch.name} begins at step {step} of {source}. Train it with:\n"
    )
    typer.echo(f"    {_train_command(profile, target.start_name, changes or [])}")


def _require_runs(work: Path, profile: str) -> dict[str, Path]:
    """Return the runs of RL of a profile by name; raise ArtifactError where there is none."""
    from deepsearch_rl.train.rl.fork import find_runs  # noqa: PLC0415 - transformers

    runs = find_runs(work)
    if not runs:
        settings = find_profile(Path(), profile)
        if blocked_stage(settings) == BASE_MODEL:
            raise ArtifactError(f"{work} has no run of RL: the profile {profile} trains no model.")
        raise ArtifactError(f"{work} has no run of RL yet; `{run_command(settings)}` makes one.")
    return runs


def _train_command(profile: str, start: str, changes: list[str]) -> str:
    """Return the command that runs the stage with these changes."""
    graph = dvc_file(profile)
    stage = f"rl@{start}" if profile == "tiny" else f"{graph}:rl@{start}"
    if not changes:
        return f"dvc repro {stage}"
    file = "" if profile == "tiny" else f"{Path(graph).with_name(PARAMS).as_posix()}:"
    # For a shell: a value may have blanks and braces
    options = [f"-S {shlex.quote(f'{file}{change}')}" for change in changes]
    return " ".join(["dvc exp run", *options, stage])
