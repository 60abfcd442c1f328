"""Packaged presets: whole or partial params files that a profile or a command extends.

A file with ``extends: NAME`` holds the fields that differ from that preset. Mappings are merged;
one with the tag ``!replace`` takes the place of the preset's: ``sets: !replace {...}``.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile


class _Replacement(dict[str, Any]):
    """A mapping with the tag ``!replace``."""


class _Loader(yaml.CSafeLoader):
    """PyYAML's safe loader, and the tag ``!replace``."""


def _replacement(loader: _Loader, node: yaml.MappingNode) -> _Replacement:
    return _Replacement(
        {str(key): value for key, value in loader.construct_mapping(node, deep=True).items()}
    )


_Loader.add_constructor("!replace", _replacement)


@cache
def load_preset(name: str) -> Profile:
    """Read a packaged preset with everything that it extends."""
    path = preset_file(name)
    return Profile(path, extended_values(path))


def preset_file(name: str) -> Path:
    """Return the path of a packaged preset; raise UnknownNameError, with the nearest names, if there is none."""
    return look_up(
        "preset", name, {path.stem: path for path in Path(__file__).parent.glob("*.yaml")}
    )


def extended_values(path: Path) -> dict[str, Any]:
    """Return the values of a file, merged into those of the preset that it extends, if any."""
    values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    preset = values.pop("extends", None)
    return _merged(load_preset(preset).values, values) if preset else values


def _merged(base: Any, changes: Any) -> Any:
    if not isinstance(changes, dict):
        return changes
    if not isinstance(base, dict) or isinstance(changes, _Replacement):
        base = {}
    return {**base, **{key: _merged(base.get(key), value) for key, value in changes.items()}}
