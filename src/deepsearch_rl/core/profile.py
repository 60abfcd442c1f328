"""Profile: the one reader of a params.yaml.

    config = load_profile(Path("profiles/gpu/params.yaml")).section("chunk", ChunkConfig)

Commands without a profile start from a packaged preset of the same shape
(:mod:`deepsearch_rl.core.presets`).
"""

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from deepsearch_rl.core.errors import ConfigError, UnknownNameError, look_up
from deepsearch_rl.core.redaction import is_secret

ConfigT = TypeVar("ConfigT", bound=BaseModel)
ValueT = TypeVar("ValueT")
PARAMS = "params.yaml"
# Longer values of params are texts
LONGEST_PATH = 200


@dataclass(frozen=True, slots=True)
class Profile:
    """The values of one params.yaml.

    ``overridden`` holds the dotted names of those that did not come from the file.
    """

    path: Path
    values: dict[str, Any]
    overridden: frozenset[str] = frozenset()

    @property
    def folder(self) -> Path:
        """The folder in which relative paths of the file begin: its own, or the project's of one in ``profiles/``."""
        folder = self.path.absolute().parent
        return folder.parents[1] if folder.parent.name == "profiles" else folder

    @property
    def name(self) -> str:
        """The profile's name: its folder under data/, models/, reports/ and work/."""
        return str(self.value("profile"))

    @property
    def data(self) -> Path:
        """``data/<name>``."""
        return Path("data", self.name)

    @property
    def models(self) -> Path:
        """``models/<name>``."""
        return Path("models", self.name)

    @property
    def reports(self) -> Path:
        """``reports/<name>``."""
        return Path("reports", self.name)

    @property
    def work(self) -> Path:
        """``work/<name>``: scratch folders, curves, and reports that wait for a server; untracked."""
        return Path("work", self.name)

    def value(self, name: str) -> Any:
        """Return a value of the file, e.g. ``agent.prompt``; raise ConfigError if it is missing."""
        value: Any = self.values
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                fix = "copy it from params.yaml of the tiny profile"
                raise ConfigError(f"{self.path} has no {name!r}; {fix}.")

            value = value[key]

        return value

    def section(self, name: str, config: type[ConfigT]) -> ConfigT:
        """Return a section as its config; raise ConfigError if a field is missing, unknown or out of range."""
        return self._validated(name, TypeAdapter(config))

    def mapping(self, name: str, kind: type[ValueT]) -> dict[str, ValueT]:
        """Return a section that maps names to values of one kind; raises as :meth:`section`."""
        return self._validated(name, TypeAdapter(dict[str, kind]))  # pyright: ignore[reportInvalidTypeForm]

    def with_overrides(self, overrides: Mapping[str, object]) -> "Profile":
        """Return the profile with other values for some fields, by name: ``{"agent.max_turns": 5}``."""
        values = copy.deepcopy(self.values)
        for name, value in overrides.items():
            section: Any = {"": values}
            key = ""
            prefix = ""

            for next_key in name.split("."):
                section = section[key]
                fields = section if isinstance(section, dict) else ()
                if next_key not in fields:
                    valid = [f"{prefix}{field}" for field in fields]
                    raise UnknownNameError("field of the profile", name, valid)

                key = next_key
                prefix = f"{prefix}{next_key}."

            section[key] = value

        return replace(self, values=values, overridden=self.overridden | overrides.keys())

    def with_values(self, changes: Mapping[str, Any]) -> "Profile":
        """Return the profile with other values, nested as in the file; unknown fields are refused."""
        return self.with_overrides(dict(_dotted(changes)))

    def _validated(self, name: str, adapter: TypeAdapter[Any]) -> Any:
        try:
            return adapter.validate_python(_found_from(self.folder, self.value(name)))
        except ValidationError as error:
            problem = error.errors()[0]

        # Outside of the handler, because pydantic's error shows the value, which may be a key
        field = ".".join([name, *map(str, problem["loc"])])
        from_file = not any(f"{field}.".startswith(f"{other}.") for other in self.overridden)

        value = problem["input"]
        valid = _valid_names(problem)
        wrong_name = problem.get("ctx", {}).get("tag", value)
        if valid and isinstance(wrong_name, str):
            where = f" in {self.path}" if from_file else ""
            raise UnknownNameError(f"value of {field}{where},", wrong_name, valid)

        source = f"{self.path}, " if from_file else ""
        hint = "" if is_secret(field) or isinstance(value, dict) else f" (given: {value!r})"
        raise ConfigError(f"{source}{field}: {problem['msg']}{hint}.")


def _found_from(folder: Path, value: Any) -> Any:
    """Return values whose relative paths of what is below ``folder`` can be read from the working directory.

    In the folder itself, where stages run, nothing changes. A path may have a name behind it, as
    ``FILE.py:NAME`` does.
    """
    if folder.resolve() == Path.cwd():
        return value
    if isinstance(value, str):
        path = folder / value.partition(":")[0]
        is_path = ("/" in value or path.suffix) and len(value) < LONGEST_PATH and path.exists()
        return str(folder / value) if is_path else value
    if isinstance(value, Mapping):
        return {_found_from(folder, key): _found_from(folder, part) for key, part in value.items()}
    return [_found_from(folder, part) for part in value] if isinstance(value, list) else value


def _valid_names(problem: ErrorDetails) -> list[str]:
    """Return the valid names of an error about an unknown name."""
    context = problem.get("ctx", {})
    if problem["type"] == "literal_error":
        expected = context["expected"]
    elif problem["type"] == "union_tag_invalid":
        expected = context["expected_tags"]
    else:
        return []

    # Python literals: 'a', 'b' or 'c'
    literals = ast.walk(ast.parse(expected, mode="eval"))
    constants = [node.value for node in literals if isinstance(node, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def load_profile(path: Path) -> Profile:
    """Read a params.yaml.

    Raise UnknownNameError where there is no such profile, ConfigError if it names none.
    """
    if not path.is_file() and path.parent.parent.name == "profiles":
        require_profile(path.parent.parent.parent, path.parent.name)

    values = read_values(path)
    if "profile" not in values:
        raise ConfigError(f"{path} is not a profile: it has no `profile:` name.")
    return Profile(path, values)


def read_values(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; raise ConfigError if the file is missing or is not a YAML mapping."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    except FileNotFoundError as error:
        fix = "give a profile's params.yaml, e.g. `params.yaml`"
        raise ConfigError(f"{path} does not exist; {fix}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}.") from error

    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a profile: it is no mapping of sections.")
    return values


def find_profile(root: Path, name: str) -> Profile:
    """Read a profile of the project at ``root`` by its name; raises as :func:`load_profile`."""
    require_profile(root, name)
    return load_profile((root / dvc_file(name)).with_name(PARAMS))


def profile_names(root: Path) -> list[str]:
    """Return the names of the profiles of the project at ``root``: tiny, then those of profiles/."""
    files = (root / "profiles").glob(f"*/{PARAMS}")
    return ["tiny", *sorted(path.parent.name for path in files)]


def require_profile(root: Path, name: str) -> None:
    """Raise UnknownNameError, with the nearest names, if the project has no such profile."""
    look_up("profile", name, dict.fromkeys(profile_names(root)))


def dvc_file(name: str) -> str:
    """Return the path of a profile's dvc.yaml, relative to the project."""
    return "dvc.yaml" if name == "tiny" else f"profiles/{name}/dvc.yaml"
