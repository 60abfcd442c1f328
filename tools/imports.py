"""First-party imports of a module, read from source without running it."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Any

from deepsearch_rl.agent.config import SCRIPTED

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"deepsearch_rl": ROOT / "src" / "deepsearch_rl", "stages": ROOT / "stages"}
# A dep of dvc.yaml whose folder params choose
_CHOICE = re.compile(r"(src/[\w/]+)/\$\{([\w.]+)\}")
_MODULE_NAME = re.compile(r"(deepsearch_rl|stages)(\.\w+)+")
_PROGRAM = re.compile(r"\$\{python\.(\w+)\} -m stages\.(\w+)")


def programs_in(text: str) -> list[tuple[str, str]]:
    """Return what a command of dvc.yaml starts: names of interpreters in params' ``python``, and modules of stages/."""
    return _PROGRAM.findall(text)


def module_file(name: str) -> Path | None:
    """Return the file of a first-party module, None where there is no such module."""
    package, *rest = name.split(".")
    if package not in PACKAGES:
        return None
    # The package itself holds a version, and the settings of a stage's process
    if not rest:
        return None

    stem = PACKAGES[package].joinpath(*rest)
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return path
    return None


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_names(path: Path, with_types: bool = True) -> Iterator[str]:
    """Yield the dotted names that a file imports; ``from a import b`` gives both ``a`` and ``a.b``.

    ``with_types`` includes imports under ``if TYPE_CHECKING:``, which no run of the file loads.
    """
    for node in _nodes(parse(path), with_types):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def _nodes(node: ast.AST, with_types: bool) -> Iterator[ast.AST]:
    if not with_types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child, with_types)


def unchosen(values: Mapping[str, Any]) -> frozenset[Path]:
    """Return the folders whose code a profile does not use: those beside the ones that deps of dvc.yaml choose.

    The scripted teacher's is one of them where the profile names another teacher.
    """
    teacher = ROOT / values["synthesize"]["teacher"].rstrip("/")
    unchosen_folders = {ROOT / SCRIPTED} - {teacher}
    for folder, name in _choices():
        chosen = ROOT / folder / str(_value(name, values))
        siblings = {path for path in (ROOT / folder).iterdir() if path.is_dir()}
        unchosen_folders |= siblings - {chosen}

    return frozenset(unchosen_folders)


@cache
def _choices() -> frozenset[tuple[str, str]]:
    """Return the folders of which dvc.yaml takes one, each with the param that names it."""
    return frozenset(_CHOICE.findall((ROOT / "dvc.yaml").read_text(encoding="utf-8")))


def _value(name: str, values: Mapping[str, Any]) -> Any:
    return reduce(lambda section, key: section[key], name.split("."), values)


def closure(path: Path, without: frozenset[Path] = frozenset()) -> set[Path]:
    """Return all first-party files that decide what a program does: its code and the data files that its code names.

    Files in the folders ``without`` are left out, with what they alone import. A package's
    ``__init__.py`` counts where it holds more than a docstring.
    """
    files = {path}
    waiting = [path]

    while waiting:
        for file in _used_files(waiting.pop()):
            if file not in files and without.isdisjoint(_folders(file)):
                files.add(file)
                waiting.append(file)

    deciding: set[Path] = set()
    for file in files:
        deciding.update(_data_files(file))
        if not _is_docstring(file):
            deciding.add(file)

    return deciding


@cache
def _folders(path: Path) -> frozenset[Path]:
    return frozenset(path.parents)


@cache
def _used_files(path: Path) -> frozenset[Path]:
    """First-party files that a file imports or starts by name (``python -m deepsearch_rl...``), with their packages."""
    names = set(imported_names(path, with_types=False))
    names.update(filter(_MODULE_NAME.fullmatch, _texts(path)))

    files: set[Path] = set()
    for module in filter(None, map(module_file, names)):
        files.add(module)
        # An import of a.b.c runs the __init__.py of a and of a.b first
        for folder in filter(_is_inside_package, module.parents):
            files.add(folder / "__init__.py")

    return frozenset(filter(Path.is_file, files))


def _is_inside_package(folder: Path) -> bool:
    """Whether a folder is a package below one of :data:`PACKAGES`; those hold a version and the process's settings."""
    return any(package in folder.parents for package in PACKAGES.values())


def _is_docstring(path: Path) -> bool:
    return path.name == "__init__.py" and len(parse(path).body) <= 1


@cache
def _data_files(path: Path) -> frozenset[Path]:
    """Data files that a module names (``"page.css"``), or whose folder, beside it, it names (``"prompts"``)."""
    names = {Path(text).name for text in _texts(path)}
    files: set[Path] = set()
    for data in _all_data_files():
        beside = path.parent == data.parent.parent and data.parent.name in names
        if data.name in names or beside:
            files.add(data)

    return frozenset(files)


@cache
def _texts(path: Path) -> tuple[str, ...]:
    texts: list[str] = []
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)

    return tuple(texts)


@cache
def _all_data_files() -> tuple[Path, ...]:
    files: list[Path] = []
    for file in PACKAGES["deepsearch_rl"].rglob("*.*"):
        if file.suffix not in {".py", ".pyc"} and file.is_file():
            files.append(file)

    return tuple(files)
