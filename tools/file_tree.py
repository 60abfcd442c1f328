"""The file tree of docs/architecture.md: one line per module, the first line of its docstring.

    python -m tools.file_tree        (part of `make readme`)

`make lint` fails where the document shows another tree.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from deepsearch_rl.core.files import atomic_file
from tools.imports import ROOT
from tools.markers import with_part

DOCUMENT = Path("docs", "architecture.md")
NAME = "files"
PACKAGES = (
    "tools", "graph_commands", "stages", "flows", "src/deepsearch_rl", "benchmarks",
)  # fmt: skip
# Where the descriptions begin, in characters after the code block's indent
COLUMN = 33


def main() -> None:
    """Rewrite the tree in docs/architecture.md."""
    document = ROOT / DOCUMENT
    text = with_part(document.read_text(encoding="utf-8"), NAME, tree(ROOT))
    with atomic_file(document) as partial:
        partial.write_text(text, encoding="utf-8")


def tree(root: Path) -> str:
    """Return the tree of a checkout, between blank lines."""
    lines = [""]
    for package in PACKAGES:
        lines += _package_lines(root, package)
    return "\n".join([*lines, "", ""])


def _package_lines(root: Path, package: str) -> Iterator[str]:
    """Yield the lines of one package: its folders and modules in order of name, folders last."""
    yield _line(f"{package}/", describe(root / package / "__init__.py"), 0)
    yield from _inner_lines(root / package, 1)


def _inner_lines(folder: Path, depth: int) -> Iterator[str]:
    for module in sorted(folder.glob("*.py")):
        if module.name != "__init__.py":
            yield _line(module.name, describe(module), depth)

    for inner in sorted(filter(Path.is_dir, folder.iterdir())):
        # A folder without code holds templates, texts or other data
        if inner.name != "__pycache__" and any(inner.rglob("*.py")):
            yield _line(f"{inner.name}/", describe(inner / "__init__.py"), depth)
            yield from _inner_lines(inner, depth + 1)


def _line(name: str, description: str, depth: int) -> str:
    return f"    {'  ' * depth + name:<{COLUMN}} {description}".rstrip()


def describe(module: Path) -> str:
    """Return the first line of a module's docstring without its full stop; empty where there is none."""
    if not module.is_file():
        return ""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".:")


if __name__ == "__main__":
    main()
