"""Options that are fields of a packaged preset: a table has each option's field, type and help."""

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeAlias

import typer
import yaml
from typer import Option

from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.profile import Profile

# Values by the dotted names of their fields, such as ``"retrieval.top_k"``
Fields: TypeAlias = dict[str, Any]

PROMPT_HELP = (
    "System prompt: the name of one in src/deepsearch_rl/prompts, or the path of a text file, with a slash or the "
    "ending .txt."
)

RequestOption: TypeAlias = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE",
        show_default=False,
        help="An option of the endpoint's requests, as often as needed: token_limit=max_completion_tokens, "
        "temperature=omit, seed=omit, extra_body={enable_thinking: false}, stream=true, requests_per_minute=60, "
        "tokens_per_minute=90000, rate_limit_wait_s=600.",
    ),
]


class FieldOption:
    """An option of type ``kind`` whose default is a field of a preset.

    ``names`` and ``limits`` are those of :class:`typer.Option`. A switch that is off by default
    gives its name in ``names``, because Typer would otherwise add a ``--no-...`` beside it.
    """

    def __init__(self, field: str, kind: Any, text: str, *names: str, **limits: Any) -> None:
        self.field = field
        self.annotation = Annotated[kind, Option(*names, help=text, **limits)]


def field_options(
    preset: str, options: Mapping[str, FieldOption]
) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that gives a command these options in place of its parameter ``fields: Fields``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """Return the command with the signature that typer reads its options from."""

        @functools.wraps(command)
        def with_fields(**arguments: Any) -> None:
            fields = {option.field: arguments.pop(name) for name, option in options.items()}
            command(**arguments, fields=fields)

        values = load_preset(preset).values
        field_parameters: list[inspect.Parameter] = []
        for name, option in options.items():
            default = functools.reduce(operator.getitem, option.field.split("."), values)
            parameter = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option.annotation
            )
            field_parameters.append(parameter)

        # In the place of `fields`, because --help shows options in the order of the signature
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            parameters += field_parameters if parameter.name == "fields" else [parameter]

        with_fields.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return with_fields

    return decorate


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


def given_fields(context: typer.Context, options: Mapping[str, FieldOption]) -> set[str]:
    """Return the fields of the options that stand on the command line."""
    return {option.field for name, option in options.items() if is_given(context, name)}


def with_options(settings: Profile, options: Mapping[str, object]) -> Profile:
    """Return settings with the options that were given: those that are None leave a field as it is."""
    changes = {field: value for field, value in options.items() if value is not None}
    return settings.with_overrides(changes)


def named_numbers(option: str, texts: Iterable[str], form: str) -> dict[str, float]:
    """Return the numbers of an option's ``name=number`` texts, by name; raise ConfigError with ``form`` for others."""
    numbers: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            numbers[name] = float(number)
        except ValueError as error:
            raise ConfigError(f"{option} {text!r} should be {form}.") from error

    return numbers


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
