"""A user's own code in params: ``path/to/file.py:name`` stands for a function or class of that file.

    code = load_own("reward", "own/rewards.py:cites", ("trajectory", "question", "policy"))
    code(trajectory, question, policy)

The path is written as a dep of DVC is, so that the file that is loaded is the file that decides
whether a stage runs again. A module's name could be found in another folder of ``sys.path``: in the
project instead of in DVC's copy of it, or nowhere, in a worker of an engine that has another working
directory. Relative paths begin at the folder of the project whose sources run, in every process.

A file stands alone: it imports ``deepsearch_rl`` and installed packages, no file beside it.
Section ``own`` of params names the file, or its folder, by the kind of the code; dvc.yaml makes that
a dep of the stages that can load this kind.
"""

import contextlib
import hashlib
import importlib.util
import inspect
import posixpath
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
# The field of section ``own`` that has the file, by the section that names code in it
KINDS: Mapping[str, str] = {
    "download": "reader",
    "index": "encoder",
    "retrieval": "retriever",
    "filter": "filter",
    "rl": "reward",
    "optimize_prompt": "reward",
}
_NAME = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)")
_SOURCES = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class OwnCode:
    """A function or class of a user's file; ``name`` is how params name it, ``kind`` what it is used as.

    Calling it raises ConfigError with file and line where the code fails.
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
        """Turn what the code raises in this block into a ConfigError with its place; our own errors stay."""
        try:
            yield
        except DeepsearchError:
            raise
        except Exception as error:
            raise self.error(_description(error, self.path)) from error

    def error(self, problem: str) -> ConfigError:
        """Return the error of what the code does wrong."""
        return ConfigError(f"the {self.kind} {self.name} {problem}. (docs/own_code.md)")


def is_own(name: str) -> bool:
    """Return whether a name of params is meant as a user's own code; all other names are ours, without a colon."""
    return ":" in name


def own_path(name: str) -> Path:
    """Return the absolute path of the file that a name names; raise ConfigError for a name of another form."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(
            f"{name!r} names no code: own code is named by its file and its name in it, "
            "own/rewards.py:cites for example. (docs/own_code.md)"
        )
    return _project() / match["path"]


def load_own(kind: str, name: str, arguments: Sequence[str]) -> OwnCode:
    """Return the code that a name names, after a check that it can be called with as many ``arguments``.

    Raise ConfigError where the file does not exist, cannot be loaded or the code takes other
    arguments; UnknownNameError, with the names that the file defines, where it is not there.
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
        # At the start, and not after hours in the first call
        inspect.signature(value).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise code.error(f"cannot be called with {call}: {error}") from error

    return code


def require_deps(profile: Profile) -> None:
    """Check that section ``own`` names every file of own code that params name, and that it is a file of the project.

    Raise ConfigError with the field to set: without it no edit of the file would run a stage again.
    """
    values = profile.values
    settings = values.get("model_settings") or {}
    for sections in (values, *settings.values()):
        for section, kind in KINDS.items():
            for name in _own_names((sections or {}).get(section)):
                # A clone on another machine has the project's files and no others
                _require_portable(name, f"{profile.path}, {section}")
                file = own_path(name)
                declared = _project() / str(profile.value(f"own.{kind}"))
                if declared not in (file, *file.parents):
                    raise ConfigError(
                        f"{profile.path}, {section}: {name} is in no dep of the stages that use "
                        f"it. Set own.{kind}: {name.rpartition(':')[0]} (or its folder), so that "
                        "an edit of it runs them again."
                    )


def _require_portable(name: str, where: str) -> None:
    """Raise ConfigError for a path that another machine does not have, or that MLflow cannot name a metric by."""
    path = name.rpartition(":")[0]
    if path.startswith(("/", "..")) or posixpath.normpath(path) != path:
        raise ConfigError(
            f"{where}: {name} is not named by its path from the project's folder, as "
            "own/rewards.py:cites is."
        )


def _own_names(value: Any) -> Iterator[str]:
    """Yield the names of own code among the keys and values of a section."""
    if isinstance(value, str):
        if _NAME.fullmatch(value):
            yield value
        return

    items: Iterable[Any] = ()
    if isinstance(value, Mapping):
        items = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple):
        items = value
    for item in items:
        yield from _own_names(item)


def _project() -> Path:
    """Return the folder where relative paths begin: the project whose sources run, or else the working directory."""
    return _SOURCES if (_SOURCES / "dvc.yaml").is_file() else Path.cwd()


@cache
def _load(path: Path) -> ModuleType:
    """Run a file as a module of its own, once in a process."""
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
    """Return what an exception of a user's file says, with the last line of that file on its way."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    place = f" at line {line}" if line else ""
    return f"fails{place} with {type(error).__name__}: {error}"
