"""The rules of this project that no other linter knows: what may import what, and what documents may say.

    python -m tools.lint        (part of `make lint`)

Every rule is a function of the checkout's folder that yields findings. Each finding is printed as
``file:line: message``; the exit status is 1 if there is one. tests/test_lint.py plants a violation
of every rule.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from deepsearch_rl.cli import main as cli
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.records import StopReason
from deepsearch_rl.evaluate.table_files import CSV_COLUMNS
from deepsearch_rl.train.rewards import REWARDS
from tools import departures, file_tree, readme
from tools.documents import (
    all_code,
    anchors,
    documents,
    is_module,
    numbered_lines,
    unknown_targets,
    unknown_words,
)
from tools.imports import ROOT, parse
from tools.markers import with_part

# Names in ``deepsearch_rl``: a module imports from its own layer and from those before it
LAYERS = (
    ("core", "presets", "prompts"),
    ("project",),
    ("conversation",),
    ("endpoints",),
    ("corpora",),
    ("retrieval", "engines"),
    ("indexing", "measurement"),
    ("question_writing",),
    ("search_server",),
    ("agent",),
    ("serving",),
    ("trajectories",),
    ("training",),
    ("environment",),
    ("evaluation", "explain"),
    ("tracking",),
    ("planning",),
    ("commands",),
    ("cli",),
)
# Tools that the library may import in one folder alone, or nowhere
RESTRICTED = {
    "dvc": None,
    "prefect": None,
    "mlflow": "tracking",
    "art": "training/backends/art",
}
README_LINES = 250


class Finding(NamedTuple):
    """What is wrong, and where."""

    path: Path
    line: int
    message: str


Findings: TypeAlias = Iterator[Finding]
Rule: TypeAlias = Callable[[Path], Findings]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    """Make a function a rule of the project."""
    RULES.append(function)
    return function


# Source files


@rule
def upward_imports(root: Path) -> Findings:
    """A module of the library imports only its own layer and those below."""
    layer_of: dict[str, int] = {}
    for number, names in enumerate(LAYERS):
        layer_of |= dict.fromkeys(names, number)

    for path in _library(root):
        own_name = path.relative_to(root / "src" / "deepsearch_rl").parts[0].removesuffix(".py")
        if own_name == "__init__":
            continue
        if own_name not in layer_of:
            yield Finding(
                path, 1, f"'{own_name}' is in no layer; add it to LAYERS in tools/lint.py"
            )
            continue

        for line, name in _imports(path):
            package, _, rest = name.partition(".")
            imported = rest.partition(".")[0]

            if package == "deepsearch_rl" and layer_of.get(imported, -1) > layer_of[own_name]:
                yield Finding(
                    path, line, f"'{own_name}' imports '{imported}', which is a layer above it"
                )


@rule
def tools_out_of_place(root: Path) -> Findings:
    """The library knows neither DVC nor Prefect; MLflow and ART are imported in one folder each."""
    for path in _library(root):
        folder = path.relative_to(root / "src" / "deepsearch_rl").parent.as_posix()
        for line, name in _imports(path):
            tool = name.partition(".")[0]
            if tool not in RESTRICTED:
                continue
            allowed = RESTRICTED[tool]

            if allowed is None:
                yield Finding(path, line, f"the library does not import {tool}")
            elif folder != allowed and not folder.startswith(f"{allowed}/"):
                yield Finding(path, line, f"only {allowed}/ imports {tool}")


@rule
def engines_in_the_rl_loop(root: Path) -> Findings:
    """The RL loop imports no engine."""
    for path in sorted((root / "src" / "deepsearch_rl" / "training" / "rl").rglob("*.py")):
        for line, name in _imports(path):
            if name.startswith("deepsearch_rl.train"):
                yield Finding(path, line, "the RL loop imports no engine: it takes an RlTrainer")


@rule
def options_without_help(root: Path) -> Findings:
    """Every option and argument of the command line has a help text."""
    for path in _library(root):
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.Call) or _called_name(node) not in {"Option", "Argument"}:
                continue
            # None is `**options`, which may hold the help
            texts = [keyword.value for keyword in node.keywords if keyword.arg in {"help", None}]
            if not texts or any(map(_is_blank, texts)):
                yield Finding(path, node.lineno, f"{_called_name(node)} has no help text")


@rule
def other_summaries(root: Path) -> Findings:
    """`deepsearch --help` says of a command what the command's own help begins with."""
    path = root / "src" / "deepsearch_rl" / "cli.py"
    for name, summary in cli.COMMANDS.items():
        own_help = (cli.load_command(name).help or "").strip()
        if own_help.partition("\n\n")[0] == summary:
            continue

        finding = Finding(path, 1, f"the help of `deepsearch {name}` begins with another sentence")
        for number, text in numbered_lines(path):
            if text.startswith(f'    "{name}": '):
                finding = finding._replace(line=number)
        yield finding


@rule
def unexplained_axes(root: Path) -> Findings:
    """Every axis letter in a name of the library has a row in docs/architecture.md, and every row is of use."""
    document = root / "docs" / "architecture.md"
    explained: dict[str, int] = {}

    for number, line in numbered_lines(document):
        row = re.match(r"\| ([A-Z1](?:, [A-Z1])*) \| ", line)
        if row:
            explained |= dict.fromkeys(row[1].split(", "), number)

    used: set[str] = set()
    for path in _library(root):
        for line, name, letters in _axes(path):
            used |= letters
            for letter in sorted(letters - explained.keys()):
                yield Finding(
                    path, line, f"docs/architecture.md does not explain the axis {letter} of {name}"
                )

    for letter in sorted(explained.keys() - used):
        yield Finding(document, explained[letter], f"no name of the library has the axis {letter}")


def _axes(path: Path) -> Iterator[tuple[int, str, set[str]]]:
    """Yield the line of every name with a suffix of axes, the name and its axis letters."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Name):
            suffix = re.fullmatch(r"[a-z_]+_([A-Z1]{1,4})", node.id)
            if suffix:
                yield node.lineno, node.id, set(suffix[1])


# Documents


@rule
def stale_parts(root: Path) -> Findings:
    """The parts of documents that a script writes are what it would write."""
    results = [readme.part(table) for table in readme.reported(root)]
    yield from _stale_part(root / "README.md", readme.NAME, results)
    yield from _stale_part(root / file_tree.DOCUMENT, file_tree.NAME, [file_tree.tree(root)])
    yield from _stale_part(
        root / "profiles" / "gpu" / "README.md", departures.NAME, [departures.table()]
    )


def _stale_part(document: Path, name: str, parts: list[str]) -> Findings:
    text = document.read_text(encoding="utf-8")
    try:
        # One of several: README's results may be those of any profile that has a report
        allowed = [with_part(text, name, part) for part in parts]
    except DeepsearchError as error:
        yield Finding(document, 1, str(error))
        return

    if text not in allowed:
        line = text.partition(f"<!-- {name} -->")[0].count("\n") + 1
        yield Finding(document, line, f"its {name} are not up to date; run `make readme`")


@rule
def long_readme(root: Path) -> Findings:
    """README.md stays short: what is longer belongs into docs/."""
    count = len(numbered_lines(root / "README.md"))
    if count > README_LINES:
        yield Finding(
            root / "README.md", count, f"README.md has {count} lines; it may have {README_LINES}"
        )


@rule
def broken_links(root: Path) -> Findings:
    """Every link inside the project leads to a file and to a heading that are there."""
    for document in documents(root):
        for number, line in numbered_lines(document):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                if "://" in target:
                    continue
                file, _, anchor = target.partition("#")
                linked = document.parent / file if file else document

                if not linked.exists():
                    yield Finding(document, number, f"the link {target} leads to no file")
                elif anchor and anchor not in anchors(linked):
                    yield Finding(document, number, f"the link {target} leads to no heading")


@rule
def missing_files(root: Path) -> Findings:
    """Every file of the project that a document names is there, and so is every document that the source names."""
    project_path = re.compile(
        r"(?<![\w/.<>-])(?:src|stages|flows|scripts|tests|docs|benchmarks|containers)/[\w./-]*\w\b(?!/)"
    )
    for code in all_code(root):
        for name in project_path.findall(code.text):
            if not (root / name).exists():
                yield Finding(code.path, code.line, f"there is no {name}")

    sources = [
        *_library(root),
        *(root / "stages").glob("*.py"),
        *root.glob("profiles/*/params.yaml"),
    ]
    for path in sources:
        for number, line in numbered_lines(path):
            for name in re.findall(r"docs/\w+\.md", line):
                if not (root / name).exists():
                    yield Finding(path, number, f"there is no {name}")


@rule
def unknown_commands(root: Path) -> Findings:
    """Every target of make, module and `deepsearch` command with its options that a document names is there."""
    targets = set(
        re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    commands = {name: cli.load_command(name) for name in cli.COMMANDS}
    command_line = re.compile(r"(?:^|[\s/])(make|deepsearch|python -m)\s+([^|;&>]*)")

    for code in all_code(root):
        without_comment = code.text.partition(" #")[0]
        for program, rest in command_line.findall(without_comment):
            words = [word.strip("[]().,:`'\"") for word in rest.split()]
            if program == "make":
                unknown = unknown_targets(words, targets)
            elif program == "deepsearch":
                unknown = unknown_words(words, commands)
            else:
                unknown = [f"python -m {word}" for word in words[:1] if not is_module(root, word)]

            for each in unknown:
                yield Finding(code.path, code.line, f"there is no `{each}`")


@rule
def incomplete_contracts(root: Path) -> Findings:
    """docs/contracts.md lists the columns of the F1 table, the stop reasons and the rewards that the code has."""
    document = root / "docs" / "contracts.md"
    text = document.read_text(encoding="utf-8")

    columns = re.search(r"\n    (model, .*?) \{stop reason", text, re.DOTALL)
    reasons = re.search(r"^    stop_reason .*?\n\n", text, re.DOTALL | re.MULTILINE)
    listed: dict[str, list[str]] = {
        "columns of a row": re.split(r",\s+", columns[1]) if columns else [],
        "stop reasons": re.findall(r"^    (\w+) ", reasons[0], re.MULTILINE)[1:] if reasons else [],
        "rewards": re.findall(r"^    (\w+) .* 0(?: \.\. | \| )1$", text, re.MULTILINE),
    }
    actual = {
        "columns of a row": [name for name in CSV_COLUMNS if name != "generated"],
        "stop reasons": [str(reason) for reason in StopReason],
        "rewards": list(REWARDS),
    }

    for what, names in actual.items():
        for name in sorted(set(names) ^ set(listed[what])):
            state = "is missing" if name in names else "does not exist"
            yield Finding(document, 1, f"'{name}' {state} among the {what}")


# Reading


def _library(root: Path) -> list[Path]:
    return sorted((root / "src" / "deepsearch_rl").rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of every import; ``from a import b`` gives ``a.b``."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def _called_name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_blank(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not str(node.value).strip()


def main() -> None:
    """Print the findings of all rules in this checkout."""
    findings: list[Finding] = []
    try:
        for each in RULES:
            findings += each(ROOT)
    except DeepsearchError as error:
        # A report or params that cannot be read
        sys.exit(f"error: {error}")

    for path, line, message in sorted(findings):
        sys.stdout.write(f"{path.relative_to(ROOT)}:{line}: {message}\n")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
