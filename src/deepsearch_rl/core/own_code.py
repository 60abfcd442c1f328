"""A user's own code in params: ``path/to/file.py:name`` stands for a function or class of that file.

    code = load_own("reward", "own/rewards.py:cites", ("trajectory", "question", "policy"))
    code(trajectory, question, policy)

The path is that of the file's dep in dvc.yaml. A relative path begins at the folder of the project
whose sources run, in every process. A file stands alone: it imports ``deepsearch_rl`` and installed
packages, no file beside it.
"""

import contextlib
import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import StringConstraints

from deepsearch_rl.core.errors import ConfigError, DeepsearchError, UnknownNameError
from deepsearch_rl.core.profile import Profile

OwnName = Annotated[str, StringConstraints(pattern=r"^.+\.py:\w+$")]
_NAME = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)")
_SOURCES = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class OwnCode:
    """A function or class of a user's file: its name in params and what it is used as.

    Calling it raises ConfigError with file and line if the code fails.
    """

    kind: str
    name: str
    path: Path
    value: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        """Call the code."""
        with self.named():
            return self.value(*arguments)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Turn exceptions of the code in this block into a ConfigError with file and line."""
        try:
            yield
        except DeepsearchError:
            raise
        except Exception as error:
            raise self.error(_description(error, self.path)) from error

    def error(self, problem: str) -> ConfigError:
        """Return the error about a mistake of the code."""
        return ConfigError(f"the {self.kind} {self.name} {problem}. (docs/own_code.md)")


def is_own(name: str) -> bool:
    """Return whether a name in params is a user's own code; our names have no colon."""
    return ":" in name


def own_path(name: str) -> Path:
    """Return the absolute path of the file in a name; raise ConfigError for a name of another form."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(
            f"{name!r} names no code: write the file and the name in it, "
            "own/rewards.py:cites for example. (docs/own_code.md)"
        )
    return _project() / match["path"]


def load_own(kind: str, name: str, arguments: Sequence[str]) -> OwnCode:
    """Return the code of a name, after a check that it accepts ``arguments``.

    Raises:
        ConfigError: the file does not exist or cannot be loaded, or the code takes other arguments.
        UnknownNameError: the file does not define the name.
    """
    path = own_path(name)
    attribute = name.rpartition(":")[2]
    if not path.is_file():
        raise ConfigError(
            f"the {kind} {name} does not exist: there is no file {path}. The path begins at the "
            "project's folder; a copy of the project, such as a worker's, has the files that git "
            "has."
        )

    module = _load(path)
    if not hasattr(module, attribute):
        raise UnknownNameError(f"{kind} in {path},", attribute, _defined(module) or ["(none)"])

    value = getattr(module, attribute)
    code = OwnCode(kind, name, path, value)
    call = f"({', '.join(arguments)})"
    if not callable(value):
        raise code.error(f"is a value; it must be a function or class that is called with {call}")

    try:
        # Now, and not after hours in the first call
        inspect.signature(value).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise code.error(f"cannot be called with {call}: {error}") from error

    return code


def own_files(value: Any) -> set[str]:
    """Return the files of all ``FILE.py:NAME`` among the keys and values of params."""
    if isinstance(value, str):
        match = _NAME.fullmatch(value)
        return {match["path"]} if match else set()

    items: Iterable[Any] = ()
    if isinstance(value, Mapping):
        items = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple):
        items = value

    files: set[str] = set()
    for item in items:
        files |= own_files(item)

    return files


def require_deps(profile: Profile) -> None:
    """Raise ConfigError where params name own code or a base model that is no dep in the dvc.yaml beside them."""
    graph = profile.path.with_name("dvc.yaml")
    if not graph.is_file():
        return
    deps = {line.strip() for line in graph.read_text(encoding="utf-8").splitlines()}
    for file in sorted({*own_files(profile.values), *model_deps(profile.values)}):
        if f"- {file}" not in deps:
            raise ConfigError(
                f"{profile.path} names {file}, which is no dep in {graph}, so that no edit "
                f"of it would run a stage again. Add `- {file}` to the deps of the stages that "
                "load it; for a profile in profiles/, `make params` does it. (docs/own_code.md)"
            )


def model_deps(values: Mapping[str, Any]) -> list[str]:
    """Return the folder and the chat template that section ``prepare_model`` names."""
    section = values.get("prepare_model", {})
    return [str(section[name]) for name in ("path", "chat_template") if section.get(name)]


def _project() -> Path:
    """Return the base of relative paths: the project whose sources run, or else the working directory."""
    return _SOURCES if (_SOURCES / "dvc.yaml").is_file() else Path.cwd()


@cache
def _load(path: Path) -> ModuleType:
    """Run a file as a module, once in a process."""
    # Two files of one name must not replace each other
    name = f"own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while it is loaded
    sys.modules[name] = module

    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(
            f"{path} cannot be loaded: it {_description(error, path)}. A file of own code imports "
            "deepsearch_rl and installed packages, no file beside it. (docs/own_code.md)"
        ) from error

    return module


def _defined(module: ModuleType) -> list[str]:
    """Return the public functions and classes that a module itself defines."""
    names: list[str] = []
    for name, value in vars(module).items():
        is_own = getattr(value, "__module__", None) == module.__name__
        if is_own and not name.startswith("_"):
            names.append(name)

    return names


def _description(error: Exception, path: Path) -> str:
    """Describe an exception of a user's file, with the last line of that file in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    place = f" at line {line}" if line else ""
    return f"fails{place} with {type(error).__name__}: {error}"
