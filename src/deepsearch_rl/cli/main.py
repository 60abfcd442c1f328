"""The ``deepsearch`` command: every subcommand under its name.

The module of a subcommand is imported when it is called, or when its own help is asked for:
`deepsearch --help` needs none of them, only the sentences here.
"""

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
import typer.main
from typer.core import TyperGroup

from deepsearch_rl import __version__
from deepsearch_rl.core.environment import prepare_environment
from deepsearch_rl.core.errors import DeepsearchError, UnavailableError, full_disk_named

if TYPE_CHECKING:
    from typer._click import Command, Context

COMMANDS = {
    "doctor": "Show what this machine has and what each profile needs, with the command that gets what is missing.",
    "plan": "Show what a run of a profile takes, stage by stage: time, disk, memory, an API's tokens and their price.",
    "preflight": "Try a profile's training path on a small model: what works, and what to do before it costs hours.",
    "table": "Print the F1 table of a profile as it was last reported.",
    "summary": "Print the F1 table, each stage's time and peak memory, and where to look next.",
    "ask": "Let the agent answer a question, and show its queries, the passages it finds and its answer as they come.",
    "datasets": "List the readable data sets, or show one: source, licence, a row, and the params that fetch it.",
    "evaluate": "Let a model answer a question set with search, and print its row of the F1 table.",
    "score": "Score answers: em, f1, acc, precision and recall, with 95 % intervals, by question type.",
    "compare": "First minus second, question by question, with 95 % intervals and permutation p-values.",
    "explain": "Show where runs lose points, cause by cause, what could be reached, and how a published row differs.",
    "retrieve": "Build, search, serve and measure passage indexes.",
    "model": "Checkpoints of other trainers as model folders.",
    "trajectories": "What became of rollouts, and files for other trainers.",
}
# Commands whose module is not called cli/<command>.py
MODULES = {
    "table": "deepsearch_rl.cli.summary",
    "compare": "deepsearch_rl.cli.score",
    "preflight": "tools.preflight.command",
}
# tools/ is in a clone of the project, not in an installed package
CLONE = Path(__file__).resolve().parents[3]
DEBUG = "--debug"
# What atomic writers of core/files.py call a file or folder until it is complete
_PARTIAL = re.compile(r"\.(?P<name>.+?)(\.\d+-\d+)?\.(partial|earlier|lock)")


def load_command(name: str) -> "Command":
    """Import a subcommand and return it with all its options and, if it is a group, its own subcommands."""
    if name == "preflight":
        if not (CLONE / "tools").is_dir():
            raise UnavailableError(
                "preflight needs a clone of the project: run .venv/bin/deepsearch there."
            )
        sys.path.append(str(CLONE))

    module = importlib.import_module(MODULES.get(name, f"deepsearch_rl.cli.{name}"))
    parent = typer.Typer(rich_markup_mode="markdown")

    if hasattr(module, "app"):
        parent.add_typer(module.app, name=name)
    else:
        parent.command(name)(getattr(module, f"{name}_command"))

    return typer.main.get_group(parent).commands[name]


class _LazyGroup(TyperGroup):
    def resolve_command(
        self, ctx: "Context", args: list[str]
    ) -> "tuple[str | None, Command, list[str]]":
        """Load the subcommand that a command line, or its completion, names."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(str(name)), rest


app = typer.Typer(
    name="deepsearch",
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _summary in COMMANDS.items():
    # Stands for the command until it is called
    app.command(_name, help=_summary)(lambda: None)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
    _debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False,
) -> None:
    """Look at a search agent's training graph, and use its parts: retrieval, agent, scoring.

    The graph itself runs with `make repro`, or with `dvc repro`
    (one profile: `dvc repro profiles/smoke/dvc.yaml`).

        deepsearch doctor    # what is installed, and what is missing
        make repro           # run whatever is not up to date
        deepsearch table     # the F1 table
    """
    prepare_environment()


def main() -> None:
    """Run the command line; an error of the user, the system or the installation is one paragraph and status 1."""
    try:
        with full_disk_named("while writing"):
            app()
    except DeepsearchError as error:
        _end(str(error))
    except OSError as error:
        _end(os_problem(error))
    except ValueError as error:
        message = _option_problem(error)
        if message is None:
            raise
        _end(message)
    except ModuleNotFoundError as error:
        from deepsearch_rl.cli.doctor import explain_missing_module  # noqa: PLC0415 - for this error alone

        message = explain_missing_module(error)
        if message is None:
            raise
        _end(message)


def os_problem(error: OSError) -> str:
    """Return an error of the system with the path that the user named, where it is of a half-written file."""
    path = Path(str(error.filename or ""))
    place = path
    # A folder's lock is named after its half-written neighbour: ..index.partial.lock
    while partial := _PARTIAL.fullmatch(place.name):
        place = place.with_name(partial["name"])

    if place == path:
        return str(error)
    return f"{place} cannot be written: {error.strerror}. Name another place, or change its permissions."


def _option_problem(error: ValueError) -> str | None:
    """Return what is wrong with a value of the command line that a config refuses; None for another error."""
    # By its name first: `--help` waits for no pydantic
    if type(error).__module__.partition(".")[0] != "pydantic_core":
        return None
    from pydantic import ValidationError  # noqa: PLC0415

    if not isinstance(error, ValidationError):
        return None

    # The value stays out of the message: it may be a key
    problem = error.errors(include_url=False)[0]
    name = str(problem["loc"][-1]) if problem["loc"] else ""
    option = f"--{name.replace('_', '-')}"
    words = sys.argv[1:]
    if any(word == option or word.startswith(f"{option}=") for word in words):
        return f"{option}: {problem['msg']}."
    # An argument has no option's name
    return f"{name.upper()}: {problem['msg']}." if name and str(problem["input"]) in words else None


def _end(message: str) -> NoReturn:
    """End with a paragraph and status 1; with ``--debug``, the traceback stands above it."""
    if DEBUG in sys.argv:
        traceback.print_exc()
    sys.exit(f"error: {message}")
