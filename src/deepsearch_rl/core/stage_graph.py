"""What a stage of a dvc.yaml declares, read without DVC: the interpreters of a GPU profile do not have it.

    declared = read_stage(load_profile(Path("params.yaml")), "rl@sft")
    declared.sources    # ("stages/rl.py", "src/deepsearch_rl/agent", ...)
    declared.data       # ("models/tiny/sft", "data/tiny/index", ...)
    declared.params     # (("params.yaml", "rl"), ...)

Values in ``${...}`` are filled in from the profile as DVC does it, so a profile with overrides
declares what DVC would see under these params.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.profile import Profile

DVC_YAML = "dvc.yaml"
# What the dep of source files begins with in dvc.yaml, a user's own ones among them; every other
# dep is data
SOURCES = ("src/", "stages/", "${own.")
_VALUE = re.compile(r"\$\{([^}]+)\}")


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """The deps of a stage, as paths from the project's folder, and its params, as pairs of file and dotted name.

    A source is a file or a folder, which stands for all files in it.
    """

    name: str
    sources: tuple[str, ...]
    data: tuple[str, ...]
    params: tuple[tuple[str, str], ...]


def read_stage(profile: Profile, name: str, root: Path) -> DeclaredStage:
    """Return what a stage, e.g. ``rl@sft``, declares in the dvc.yaml of a profile.

    A profile whose params have no dvc.yaml beside them, such as a cut copy for a check, has the one
    of the project at ``root``.

    Raises:
        UnknownNameError: the graph has no such stage.
        ConfigError: the file is no graph, or names a value that the profile does not have.
    """
    template, items = look_up("stage", name, dict(_stages(profile, root)))
    values = {**profile.values, **items}
    sources: list[str] = []
    data: list[str] = []

    for dep in template.get("deps", ()):
        # By the text before values are filled in: a prompt below src/ that params name is data, and
        # a further one is no other code.
        paths = sources if dep.startswith(SOURCES) else data
        paths.append(str(_filled(dep, values)))

    return DeclaredStage(
        name=name,
        sources=tuple(sources),
        data=tuple(data),
        params=tuple(_params(template, values)),
    )


def require_data(profile: Profile, name: str, paths: Iterable[str], root: Path) -> None:
    """Check that what a stage reads is among its deps; raise ConfigError with what is not, and as :func:`read_stage`.

    A profile without a graph of its own is not checked.
    """
    graph = profile.path.with_name(DVC_YAML)
    if not graph.is_file():
        return
    stage = read_stage(profile, name, root)
    declared = {Path(path) for path in (*stage.data, *stage.sources)}
    missing: list[str] = []
    for path in sorted(set(paths)):
        # A dep that is a folder stands for all files in it.
        if declared.isdisjoint([Path(path), *Path(path).parents]):
            missing.append(path)

    if missing:
        raise ConfigError(
            f"the stage {name} would read {', '.join(missing)}, which is no dep of it in {graph}, "
            "so that no edit of it would ever run the stage again. (A prompt is named by its file, "
            "as src/deepsearch_rl/prompts/tiny.txt; evaluate.prompts is a further folder, for "
            "those that variants name.)"
        )


def stage_names(profile: Profile, root: Path) -> list[str]:
    """Return the names of all stages of a profile's graph; raise as :func:`read_stage`."""
    return [name for name, _ in _stages(profile, root)]


def family_sources(profile: Profile, family: str, root: Path) -> tuple[str, ...]:
    """Return the source files of a family of stages, e.g. of ``rl`` for all its starts; raise as :func:`read_stage`."""
    template = look_up("stage", family, _templates(profile, root))
    deps = template.get("do", template).get("deps", ())
    sources: list[str] = []
    for dep in deps:
        if dep.startswith(SOURCES):
            sources.append(str(_filled(dep, profile.values)))

    return tuple(sources)


def _templates(profile: Profile, root: Path) -> Mapping[str, Any]:
    path = profile.path.with_name(DVC_YAML)
    if not path.is_file():
        path = root / DVC_YAML
    try:
        stages = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["stages"]
    except (OSError, yaml.YAMLError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} is no graph of DVC ({error}); `git checkout {path}` brings it back."
        ) from error

    return stages


def _stages(
    profile: Profile, root: Path
) -> Iterator[tuple[str, tuple[Mapping[str, Any], dict[str, Any]]]]:
    """Yield every stage's name, with its entry in dvc.yaml and the values that only this stage has."""
    for family, entry in _templates(profile, root).items():
        if "foreach" in entry:
            # DVC takes a mapping, whose keys name the stages, or a list of their names.
            items = _filled(entry["foreach"], profile.values)
            pairs = items.items() if isinstance(items, Mapping) else zip(items, items, strict=True)
            for key, item in pairs:
                yield f"{family}@{key}", (entry["do"], {"key": key, "item": item})
        elif "matrix" in entry:
            [(axis, values)] = entry["matrix"].items()
            for value in _filled(values, profile.values):
                yield f"{family}@{value}", (entry, {"item": {axis: value}})
        else:
            yield family, (entry, {})


def _params(template: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for entry in template.get("params", ()):
        if isinstance(entry, str):
            yield "params.yaml", entry
            continue
        for file, names in entry.items():
            for name in names:
                yield str(_filled(file, values)), str(name)


def _filled(text: Any, values: Mapping[str, Any]) -> Any:
    """Return a text with its values filled in; one that is nothing but ``${name}`` becomes the value itself."""
    if not isinstance(text, str):
        return text
    whole = _VALUE.fullmatch(text)
    if whole:
        return _value(whole[1], values)
    return _VALUE.sub(lambda match: str(_value(match[1], values)), text)


def _value(name: str, values: Mapping[str, Any]) -> Any:
    value: Any = values
    for key in name.strip().split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ConfigError(
                f"dvc.yaml names ${{{name}}}, which the profile's params do not have."
            )

        value = value[key]

    return value
