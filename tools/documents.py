"""Documents of a checkout, read for `make lint`: lines, headings, the code in them, and the commands that it names."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools import file_tree


class Code(NamedTuple):
    """A line of code or a code span of a document."""

    path: Path
    line: int
    text: str


def documents(root: Path) -> list[Path]:
    """Return all documents of a checkout."""
    paths: list[Path] = []
    for pattern in ("*.md", "docs/*.md", "profiles/*/README.md"):
        paths += root.glob(pattern)

    return sorted(paths)


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines of a file with their numbers."""
    return list(enumerate(path.read_text(encoding="utf-8").splitlines(), start=1))


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    result: set[str] = set()
    for _, line in numbered_lines(document):
        if line.startswith("#"):
            heading = line.lstrip("#").strip().lower()
            result.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))

    return result


def all_code(root: Path) -> Iterator[Code]:
    """Yield the code of all documents of a checkout, the change log excepted."""
    for document in documents(root):
        # The change log speaks of earlier versions
        if document.name != "CHANGELOG.md":
            yield from _code(document)


def _code(document: Path) -> Iterator[Code]:
    """Yield the code of a document: indented and fenced lines, lines that a backslash joins as one, and code spans."""
    prose: list[str] = []
    is_fenced = False
    is_tree = False
    begun: Code | None = None

    for number, line in numbered_lines(document):
        if line in {f"<!-- {file_tree.NAME} -->", f"<!-- /{file_tree.NAME} -->"}:
            is_tree = not is_tree
        # The lines of the file tree are sentences
        if is_tree:
            prose.append("")
            continue

        is_fence = line.lstrip().startswith("```")
        is_fenced ^= is_fence
        if is_fence or not (is_fenced or line.startswith("    ")):
            prose.append("" if is_fence else line)
            continue

        prose.append("")
        text = f"{begun.text} {line}" if begun else line
        code = Code(document, begun.line if begun else number, text.removesuffix("\\"))
        begun = code if line.endswith("\\") else None
        if begun is None:
            yield code

    text = "\n".join(prose)
    for span in re.finditer(r"`([^`]+)`", text):
        yield Code(document, text.count("\n", 0, span.start()) + 1, span[1])


def unknown_targets(words: list[str], targets: set[str]) -> Iterator[str]:
    """Yield every target that the Makefile does not have."""
    for word in words:
        # Anything else is a variable, an option or a placeholder
        if re.fullmatch("[a-z-]+", word) and word not in targets:
            yield f"make {word}"


def unknown_words(words: list[str], commands: dict[str, Any]) -> Iterator[str]:
    """Yield the first subcommand, and all options, that the command line does not have."""
    path = "deepsearch"
    options: set[str] = {
        "--help",
        "-h",
        "--version",
        "--debug",
        "--install-completion",
        "--show-completion",
    }

    for word in words:
        if word.startswith("-"):
            option = word.partition("=")[0]
            if option not in options:
                yield f"{path} {option}"
        elif commands and re.fullmatch(r"[a-z-]+", word):
            if word not in commands:
                yield f"{path} {word}"
                return

            command = commands[word]
            path = f"{path} {word}"
            commands = getattr(command, "commands", {})
            for parameter in command.params:
                options.update(parameter.opts, parameter.secondary_opts)


def is_module(root: Path, name: str) -> bool:
    """Whether a dotted name is a module of the checkout, or none of this project."""
    first = name.partition(".")[0]
    folder = root / "src" if first == "deepsearch_rl" else root
    if not (folder / first).is_dir():
        return True
    path = folder.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
