"""What commands share: the profile argument, other options with their readers, and tables."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Option

from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.profile import PARAMS, Profile

PROMPT_HELP = (
    "System prompt: the name of one in src/deepsearch_rl/prompts, or the path of a text file "
    "(with a slash or .txt)."
)

_PROFILE_HELP = "`tiny` (the root params.yaml) or a folder of profiles/."
# Characters: nothing is cut where no terminal limits a line
PIPE_WIDTH = 240

RequestOption: TypeAlias = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE",
        show_default=False,
        help="How to call the endpoint, e.g. temperature=omit, token_limit=max_completion_tokens or "
        "extra_body={enable_thinking: false}; docs/contracts.md has all. Repeatable.",
    ),
]


def _in_project(profile: str | None) -> str | None:
    """Return the profile's name; raise ConfigError where the working directory is not a project's top folder."""
    here = Path.cwd()
    if (here / PARAMS).is_file() or any((here / "profiles").glob(f"*/{PARAMS}")):
        return profile
    # Commands that read a report alone
    if (here / "reports").is_dir():
        return profile

    for folder in here.parents:
        if (folder / ".dvc").is_dir():
            raise ConfigError(f"{here} is a folder inside a project; run this in {folder}.")
    raise ConfigError(f"{here} is no project; run this in the top folder of a clone.")


ProfileName: TypeAlias = Annotated[str, typer.Argument(help=_PROFILE_HELP, callback=_in_project)]


ChangesOption: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "-S",
        metavar="NAME=VALUE",
        help="Change a field of section `index`, `retrieval` or `reranker`. Repeatable.",
        show_default=False,
    ),
]


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether the option of this parameter stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def first_given(context: typer.Context, names: Iterable[str]) -> str | None:
    """Return the first of these options on the command line, as it is written there; None where there is none."""
    # Of a parameter named otherwise, such as `as_json` of --json
    spelled = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name in names:
        if is_given(context, name):
            return spelled[name]

    return None


def require_effect(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raise ConfigError where one of these options stands on the command line; ``reason`` says why it does nothing."""
    if option := first_given(context, names):
        raise ConfigError(f"{option} does nothing {reason}.")


def with_options(settings: Profile, options: Mapping[str, object]) -> Profile:
    """Return settings with the options that were given: those that are None leave a field as it is."""
    changes = {field: value for field, value in options.items() if value is not None}
    return settings.with_overrides(changes)


def changed_field(text: str) -> tuple[str, object]:
    """Return name and value of ``field=value``, the value as YAML; raise ConfigError for another text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(
            f"-S {text} is no change of a field; write field=value, e.g. -S rl.learning_rate=5e-4."
        )

    return name, _read_yaml(f"-S {name}", value)


def _read_yaml(option: str, text: str) -> object:
    """Return the value of an option that is written as YAML; raise ConfigError where it is none."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{option}: {' '.join(str(error).split())}.") from error


def request_values(texts: Iterable[str]) -> dict[str, object]:
    """Return the values of ``--request`` by name, read as YAML; raise ConfigError for another form or name."""
    from deepsearch_rl.chat.request_options import RequestOptions  # noqa: PLC0415 - for this option alone

    values: dict[str, object] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(
                f"--request {text}: write NAME=VALUE, for example --request temperature=omit."
            )

        field = name.strip()
        look_up("option of --request", field, RequestOptions.model_fields)
        values[field] = _read_yaml(f"--request {field}", value)

    return values


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], is_ruled: bool = False
) -> None:
    """Print a table, ``is_ruled`` with a line below every row. Brackets in a text are brackets, not markup."""
    table = Table(title=Text(title) if title else None, title_justify="left", show_lines=is_ruled)
    for name in header:
        table.add_column(Text(name))
    for cells in rows:
        table.add_row(*map(Text, cells))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
