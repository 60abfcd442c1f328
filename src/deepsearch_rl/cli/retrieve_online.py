"""``deepsearch retrieve online``: search endpoints that are described already, as files of the user.

Params name the file, and its digest says what was searched.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
import yaml
from typer import Option

from deepsearch_rl.cli.targets import writable_file
from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.files import atomic_file

if TYPE_CHECKING:
    from deepsearch_rl.server.online.endpoint import OnlineConfig

_FOLDER = Path(__file__).parents[1] / "presets" / "online"
PRESETS = {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}
# What a preset leaves open, and the option that fills it in
_OPTIONS = {"ENGINE_ID": "--engine", "ADDRESS": "--address"}


def online_command(
    name: Annotated[str, typer.Argument(help=f"Whose search: {' | '.join(PRESETS)}.")],
    out: Annotated[Path, Option(help="YAML file to write.", callback=writable_file)],
    engine: Annotated[
        str | None, Option(help="google: the ID (`cx`) of the Programmable Search Engine.")
    ] = None,
    address: Annotated[
        str | None, Option(help="searxng: where it answers, e.g. http://127.0.0.1:8888.")
    ] = None,
) -> None:
    """Write the file of an online search, for `retrieve serve --online` and `retrieval.online` of params.

        deepsearch retrieve online brave --out web.yaml

        deepsearch retrieve serve --online web.yaml

    The file names the environment variable that holds the key. Limits and fields can be edited in
    it.
    """
    config = write_preset(name, out, engine, address)
    key = f"; its key is read from {config.api_key_variable}" if config.api_key_variable else ""
    typer.echo(f"{out}: {config.name}{key}.")


def write_preset(name: str, out: Path, engine: str | None, address: str | None) -> "OnlineConfig":
    """Write a preset's file and return what it says; raise ConfigError and as :func:`preset_text`."""
    from deepsearch_rl.server.online.endpoint import parse_online_config  # noqa: PLC0415

    text = preset_text(name, engine, address)
    config = parse_online_config(yaml.safe_load(text), out)
    with atomic_file(out) as partial:
        partial.write_text(text, encoding="utf-8")

    return config


def preset_text(name: str, engine: str | None, address: str | None) -> str:
    """Return the YAML of a preset.

    Raise UnknownNameError for another name, and ConfigError where a value that the preset needs is
    missing, or one that it does not take is there.
    """
    text = look_up("online search", name, PRESETS).read_text(encoding="utf-8")
    values: dict[str, str | None] = {"ENGINE_ID": None, "ADDRESS": None}
    if engine is not None:
        # Bytes of a command line that are not UTF-8 are halves of surrogate pairs
        values["ENGINE_ID"] = quote(engine, safe="", errors="surrogateescape")
    if address is not None:
        # It stands in double quotes, between which YAML reads what JSON does
        values["ADDRESS"] = json.dumps(address.rstrip("/"))[1:-1]

    for placeholder, value in values.items():
        if (placeholder in text) != (value is not None):
            problem = "needs" if value is None else "takes no"
            raise ConfigError(f"the online search {name} {problem} {_OPTIONS[placeholder]}.")
        text = text.replace(placeholder, value or "")

    return text
