"""Packaged presets: whole or partial params files that a profile or a command extends.

A file with ``extends: NAME`` holds the fields that differ from the profile or preset of that name.
Mappings are merged; one with the tag ``!replace`` takes the place of the other: ``sets: !replace
{...}``.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.profile import Profile

# What `make params` makes the params.yaml of a profile from
PROFILE_FILE = "profile.yaml"


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
    """Return the values of a file, merged into those of the files that it extends; raise as :func:`extended_files`."""
    values: dict[str, Any] = {}
    for file in reversed(extended_files(path)):
        values = _merged(values, _read(file))
    return values


def extended_files(path: Path) -> list[Path]:
    """Return a file, the one that it extends, the one that this one extends, and so on.

    ``extends: NAME`` in a ``profiles/<profile>/profile.yaml`` means the profile of that name beside
    it, if there is one; elsewhere it means a packaged preset.

    Raises:
        UnknownNameError: there is neither, with the nearest names.
        ConfigError: a file extends itself.
    """
    files = [path]
    while name := yaml.load(files[-1].read_text(encoding="utf-8"), _Loader).get("extends"):
        profile = files[-1].parent.parent / name / PROFILE_FILE
        is_profile = files[-1].name == PROFILE_FILE and profile.is_file()
        files.append(profile if is_profile else preset_file(name))
        if files[-1] in files[:-1]:
            raise ConfigError(
                f"{path} extends itself: {' -> '.join(file.parent.name for file in files)}; "
                "let one of them extend tiny."
            )

    return files


def _read(path: Path) -> dict[str, Any]:
    values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    values.pop("extends", None)
    return values


def _merged(base: Any, changes: Any) -> Any:
    if not isinstance(changes, dict):
        return changes
    if not isinstance(base, dict) or isinstance(changes, _Replacement):
        base = {}
    return {**base, **{key: _merged(base.get(key), value) for key, value in changes.items()}}
