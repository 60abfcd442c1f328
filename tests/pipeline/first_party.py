"""First-party imports, read from source without running it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"deepsearch_rl": ROOT / "src" / "deepsearch_rl", "stages": ROOT / "stages"}
_MODULE_NAME = re.compile(r"(deepsearch_rl|stages)(\.\w+)+")


def module_file(name: str) -> Path | None:
    """The file of a first-party module, None where there is no such module."""
    package, *rest = name.split(".")
    if package not in PACKAGES:
        return None
    stem = PACKAGES[package].joinpath(*rest)
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if rest and path.is_file()), None)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_names(path: Path) -> Iterator[str]:
    """Dotted names that a file imports; ``from a import b`` gives both ``a`` and ``a.b``."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def used_files(path: Path) -> Iterator[Path]:
    """First-party files that a file imports, or starts by name (``python -m deepsearch_rl...``)."""
    named = (node.value for node in ast.walk(parse(path)) if isinstance(node, ast.Constant))
    started = (value for value in named if isinstance(value, str) and _MODULE_NAME.fullmatch(value))
    for name in (*imported_names(path), *started):
        found = module_file(name)
        if found is not None and found != path:
            yield found


def closure(path: Path) -> set[Path]:
    """All first-party files that running ``path`` can load, itself included, with the data files that they name."""
    seen, waiting = {path}, [path]
    while waiting:
        for found in used_files(waiting.pop()):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
    return seen | {data for file in seen for data in _named_data_files(file)}


def _named_data_files(file: Path) -> Iterator[Path]:
    """Data files that a module names (``"page.css"``), or whose folder, beside it, it names (``"prompts"``)."""
    constants = [node.value for node in ast.walk(parse(file)) if isinstance(node, ast.Constant)]
    named = {Path(value).name for value in constants if isinstance(value, str)}
    for data in PACKAGES["deepsearch_rl"].rglob("*.*"):
        beside = file.parent == data.parent.parent and data.parent.name in named
        if data.suffix not in {".py", ".pyc"} and (data.name in named or beside):
            yield data
