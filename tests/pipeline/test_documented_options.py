"""Every option ``-S`` of `dvc exp run` in the documents, read by DVC."""

import re
import shutil
from pathlib import Path

import pytest
from dvc.utils.cli_parse import to_path_overrides
from dvc.utils.hydra import apply_overrides

from tests.pipeline.smoke_copy import ROOT

# A command is an indented line, with those that continue it, or stands between backticks
COMMAND = re.compile(r"^ {4}(?:[^\n]*\\\n)*[^\n]*|`[^`\n]+`", re.MULTILINE)
OPTION = re.compile(r"""(?<!\S)`?-S (?:'([^']*)'|([^\s`]+))""")
GRAPH = re.compile(r"profiles/\w+/dvc\.yaml")


def options(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a document that change params, with their options; `deepsearch` has an ``-S`` of its own."""
    found: list[tuple[str, list[str]]] = []
    for command in COMMAND.findall(text):
        changes = [quoted or bare for quoted, bare in OPTION.findall(command)]
        if changes and "deepsearch" not in command and changes != ["NAME=VALUE"]:
            found.append((command, changes))
    return found


DOCUMENTS = {
    str(path.relative_to(ROOT)): commands
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("profiles/*/*.md")])
    if (commands := options(path.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_dvc_applies_an_option_to_the_params_of_the_profile_that_the_text_is_about(
    name: str, tmp_path: Path
) -> None:
    for command, changes in DOCUMENTS[name]:
        graph = GRAPH.search(command)
        params = (Path(graph[0]) if graph else Path(name)).with_name("params.yaml")
        expected = str(params) if params.parts[0] == "profiles" else "params.yaml"

        by_file = to_path_overrides(changes)
        assert by_file.keys() == {expected}, command
        copy = tmp_path / "params.yaml"
        shutil.copy(ROOT / expected, copy)
        for change in by_file[expected]:
            before = copy.read_text(encoding="utf-8")
            apply_overrides(str(copy), [change])
            assert copy.read_text(encoding="utf-8") != before, change


def test_an_option_without_its_file_is_found_in_every_form_that_documents_have() -> None:
    assert DOCUMENTS.keys() >= {"README.md", "docs/operations.md", "profiles/thinking/README.md"}
    for text in (
        "    dvc exp run profiles/x/dvc.yaml:index \\\n        -S index.bm25.b=1",
        "| a | `-S 'index.bm25.b=1' -S c.d=2` |",
        "run `dvc exp run -S index.bm25.b=1`",
    ):
        [(_, changes)] = options(text)
        assert changes[0] == "index.bm25.b=1"
    assert options("    deepsearch retrieve build -S index.bm25.b=1") == []
