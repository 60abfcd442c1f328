"""The ``deepsearch`` command: what is here, what is missing, and what came out.

The job itself is `dvc repro` (or `make repro`, which makes the environment first); this command looks at it. A group of
commands is a module with a typer ``app`` that is cheap to import, added here by one ``add_typer`` line; whatever is
heavy is imported by the module that the command calls.
"""

import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from deepsearch_rl import __version__, doctor, summary
from deepsearch_rl.corpora.cli import datasets_command
from deepsearch_rl.errors import DeepsearchError
from deepsearch_rl.evaluation import cli as evaluation
from deepsearch_rl.files import full_disk_named
from deepsearch_rl.retrieval.cli import app as retrieval_commands
from deepsearch_rl.trajectories.cli import app as trajectories_commands

app = typer.Typer(
    name="deepsearch",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Look at a search agent's training graph: what it needs, what it made, where its time went.

The graph runs with `dvc repro` (one profile: `dvc repro profiles/smoke/dvc.yaml`) or `make repro`. Typical use:

\b
    deepsearch doctor            # can this machine run the tiny profile? what does each profile lack?
    make repro                   # run whatever is not up to date
    deepsearch table             # the F1 table
    deepsearch summary smoke     # table, time and memory per stage, where to look next
    deepsearch score FILE        # any predictions: em, f1, acc, precision, recall, with intervals
    deepsearch compare A B       # the paired difference of two files
""",
)

app.add_typer(retrieval_commands, name="retrieve")
app.add_typer(trajectories_commands, name="trajectories")

Profile = Annotated[str, typer.Argument(help="Profile: `tiny` (the root params.yaml) or a folder of profiles/.")]
DEBUG = "--debug"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
    _debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command; --debug is read by :func:`main`."""


@app.command("doctor")
def doctor_command() -> None:
    """Say what is installed and what each profile lacks, with the command that mends it.

    Exits with status 0 when the tiny profile can run. API keys are reported as set or not set, never shown.
    """
    report = doctor.examine(Path())
    typer.echo(doctor.render(report))
    raise typer.Exit(0 if report.can_run("tiny") else 1)


@app.command("table")
def table_command(profile: Profile = "tiny") -> None:
    """Print a profile's F1 table as it was last reported."""
    typer.echo(summary.read_table(Path(), profile))


@app.command("summary")
def summary_command(profile: Profile = "tiny") -> None:
    """Print the F1 table, each stage's time and peak memory, and where to look next."""
    typer.echo(summary.render(Path(), profile))


app.command("datasets")(datasets_command)
app.command("score")(evaluation.score_command)
app.command("compare")(evaluation.compare_command)


def main() -> None:
    """Entry point: a user's errors and the system's are one paragraph and status 1; ``--debug`` adds the traceback."""
    try:
        with full_disk_named(Path.cwd()):
            app()
    except (DeepsearchError, OSError) as error:
        if DEBUG in sys.argv:
            traceback.print_exc()
        sys.exit(f"error: {error}")
