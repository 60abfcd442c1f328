"""The gpu profile's departures from the published runs: the table in its README, from published.yaml and params.yaml.

    python -m tools.departures        (part of `make readme`)

`make lint` fails where the README and the two files disagree.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field, JsonValue

from deepsearch_rl.core.errors import ConfigError, DeepsearchError
from deepsearch_rl.core.files import atomic_file
from deepsearch_rl.core.profile import PARAMS, Profile, load_profile, read_values
from deepsearch_rl.core.records import NonEmpty, Record
from tools import ROOT
from tools.markers import with_part

PROFILE = ROOT / "profiles" / "gpu"
README = PROFILE / "README.md"
NAME = "departures"
HEAD = "| setting | published | here | why | to get the published one |\n| --- | --- | --- | --- | --- |\n"
_MISSING = object()


class Value(Record):
    """A published value of a field of params.yaml."""

    path: NonEmpty = Field(description="dotted name of the field; a number is a position in a list")
    published: JsonValue
    also: tuple[str, ...] = Field(
        default=(), description="further changes of params without which it is refused"
    )
    reason: NonEmpty | None = Field(default=None, description="why the profile has another value")


class Behaviour(Record):
    """What no single field decides."""

    setting: NonEmpty
    published: NonEmpty
    ours: NonEmpty = Field(description="what happens here")
    override: tuple[str, ...] = Field(
        description="changes of params for the published behaviour, if any"
    )
    reason: NonEmpty | None = Field(description="why; null where this is no departure")


class Published(Record):
    """``published.yaml``."""

    source: NonEmpty
    train_questions: int = Field(ge=1)
    epochs: float = Field(gt=0, description="of RL")
    settings: tuple[Value | Behaviour, ...]


class Departure(NamedTuple):
    """A row of the table, in Markdown."""

    setting: str
    published: str
    ours: str
    reason: str
    override: str


def read_published() -> Published:
    """Read profiles/gpu/published.yaml; raise ConfigError where it does not fit."""
    path = PROFILE / "published.yaml"
    return Profile(path, {"published": read_values(path)}).section("published", Published)


def departures(published: Published, params: Mapping[str, Any]) -> Iterator[Departure]:
    """Yield what differs from the published settings, in their order.

    Raises:
        ConfigError: params have no field of a published path, or another value without a reason.
    """
    for each in published.settings:
        if isinstance(each, Behaviour):
            if each.reason:
                override = _options(each.override)
                yield Departure(each.setting, each.published, each.ours, each.reason, override)

            continue

        ours = value_at(params, each.path)

        if ours != each.published:
            if each.reason is None:
                raise ConfigError(
                    f"published.yaml gives no reason why {each.path} is {ours} and not {each.published}."
                )

            override = _options([*overrides(each.path, each.published, ours), *each.also])
            yield Departure(
                f"`{each.path}`", _shown(each.published), _shown(ours), each.reason, override
            )


def value_at(params: Mapping[str, Any], path: str) -> Any:
    """Return the value of a dotted name; raise ConfigError if there is none."""
    value: Any = params
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, list) else value.get(key, _MISSING)
        if value is _MISSING:
            raise ConfigError(
                f"{PROFILE / PARAMS} has no {path}, which published.yaml names; correct its path there."
            )

    return value


def overrides(path: str, published: JsonValue, ours: JsonValue) -> Iterator[str]:
    """Yield the changes of params that turn one value into another; mappings are changed key by key."""
    if not (isinstance(published, dict) and isinstance(ours, dict)):
        yield f"{path}={_text(published)}"
        return

    for key in sorted(ours.keys() - published.keys()):
        yield f"~{path}.{key}"
    for key, value in published.items():
        if key not in ours:
            yield f"+{path}.{key}={_text(value)}"
        elif value != ours[key]:
            yield from overrides(f"{path}.{key}", value, ours[key])


def _options(changes: Sequence[str]) -> str:
    # Without the file's name DVC changes the params.yaml of the project's root
    file = (PROFILE / PARAMS).relative_to(ROOT)
    options = " ".join(f"-S '{file}:{change}'" for change in changes)
    return f"`{options}`" if options else "-"


def _text(value: JsonValue) -> str:
    # Hydra splits a bare text at a comma
    is_bare = isinstance(value, str) and not set(value) & set(",=")
    return str(value) if is_bare else json.dumps(value)


def _shown(value: JsonValue) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(each)}" for key, each in value.items())
    return f"{value:,}" if type(value) is int else str(value)


def table() -> str:
    """Return the table of departures as Markdown; raises as :func:`departures`."""
    params = load_profile(PROFILE / PARAMS).values
    text = HEAD
    for row in departures(read_published(), params):
        text += f"| {' | '.join(row)} |\n"

    return text


def main() -> None:
    """Bring the README of the gpu profile up to date."""
    try:
        text = with_part(README.read_text(encoding="utf-8"), NAME, table())
    except DeepsearchError as error:
        sys.exit(f"error: {error}")

    with atomic_file(README) as partial:
        partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
