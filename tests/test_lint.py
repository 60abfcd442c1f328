"""Every rule of `tools/lint.py` finds a planted violation, and nothing beside it."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from deepsearch_rl.cli import main as cli
from tools import departures, file_tree, lint, readme
from tools.markers import with_part

LIBRARY = "src/deepsearch_rl"
PART_NAMES = {
    "README.md": readme.NAME,
    "docs/architecture.md": file_tree.NAME,
    "profiles/gpu/README.md": departures.NAME,
}


def plant(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def places(rule: lint.Rule, root: Path) -> list[str]:
    """The findings of a rule as ``file:line``."""
    return sorted(f"{path.relative_to(root)}:{line}" for path, line, _ in rule(root))


def copied(root: Path, names: tuple[str, ...], folder: Path) -> Path:
    """Copy files of the checkout into a folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, folder / name)
    return folder


def test_an_upward_import_and_a_module_without_a_layer_are_found(tmp_path: Path) -> None:
    imports = "import json\nfrom deepsearch_rl.core.errors import ConfigError\n"
    imports += "from deepsearch_rl.agent import rollout\n"
    plant(
        tmp_path,
        {
            f"{LIBRARY}/corpora/a.py": imports,
            f"{LIBRARY}/agent/a.py": imports,
            f"{LIBRARY}/new.py": "",
        },
    )
    assert places(lint.upward_imports, tmp_path) == [
        f"{LIBRARY}/corpora/a.py:3",
        f"{LIBRARY}/new.py:1",
    ]


def test_a_tool_that_is_imported_out_of_its_place_is_found(tmp_path: Path) -> None:
    files = {
        f"{LIBRARY}/tracking/a.py": "import mlflow\n",
        f"{LIBRARY}/training/backends/art/a.py": "from art import local\n",
        f"{LIBRARY}/training/a.py": "import mlflow.tracing\nimport dvc.api\nfrom prefect import flow\nimport art\n",
    }
    found = [f"{LIBRARY}/training/a.py:{line}" for line in (1, 2, 3, 4)]
    assert places(lint.tools_out_of_place, plant(tmp_path, files)) == found


def test_an_engine_in_the_rl_loop_is_found(tmp_path: Path) -> None:
    text = "from deepsearch_rl.train import make\n"
    plant(tmp_path, {f"{LIBRARY}/training/rl/a.py": text, f"{LIBRARY}/training/a.py": text})
    assert places(lint.engines_in_the_rl_loop, tmp_path) == [f"{LIBRARY}/training/rl/a.py:1"]


def test_an_option_without_a_help_text_is_found(tmp_path: Path) -> None:
    text = 'Option("--a", help="Say a.")\ntyper.Option("--b")\nArgument(help="")\n'
    plant(tmp_path, {f"{LIBRARY}/commands/a.py": text})
    assert places(lint.options_without_help, tmp_path) == [
        f"{LIBRARY}/commands/a.py:{line}" for line in (2, 3)
    ]


def test_another_summary_than_the_first_sentence_of_a_commands_help_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {f"{LIBRARY}/cli.py": 'COMMANDS = {\n    "doctor": "Do nothing.",\n'})
    monkeypatch.setitem(cli.COMMANDS, "doctor", "Do nothing.")
    assert places(lint.other_summaries, tmp_path) == [f"{LIBRARY}/cli.py:2"]


def test_an_axis_that_is_not_explained_or_not_used_is_found(tmp_path: Path) -> None:
    rows = "| letter | axis |\n| Q, K | queries; ranks |\n| Z | nothing |\n"
    plant(
        tmp_path,
        {
            "docs/architecture.md": rows,
            f"{LIBRARY}/a.py": "scores_QK = 1\nmasks_QX = 2\nLIMIT_Y = 3\n",
        },
    )
    assert places(lint.unexplained_axes, tmp_path) == [
        "docs/architecture.md:3",
        f"{LIBRARY}/a.py:2",
    ]


@pytest.mark.slow
def test_parts_that_no_script_would_write_are_found(root: Path, tmp_path: Path) -> None:
    names = (
        "README.md",
        "reports/tiny/f1_table.json",
        "profiles/gpu/README.md",
        "docs/architecture.md",
    )
    copied(root, names, tmp_path)
    for package in file_tree.PACKAGES:
        plant(tmp_path, {f"{package}/a.py": '"""A module."""\n'})
    # A run of the graph on this machine may have other figures than README.md
    results = readme.part(next(readme.reported(tmp_path)))
    written = (
        ("README.md", readme.NAME, results),
        ("docs/architecture.md", file_tree.NAME, file_tree.tree(tmp_path)),
    )
    for name, part_name, part in written:
        document = tmp_path / name
        document.write_text(with_part(document.read_text(), part_name, part))
    assert places(lint.stale_parts, tmp_path) == []

    stale = {
        "README.md": "| --- |",
        "profiles/gpu/README.md": "| --- |",
        "docs/architecture.md": "A module",
    }
    for name, text in stale.items():
        document = tmp_path / name
        begun, marker, part = document.read_text().partition(f"<!-- {PART_NAMES[name]} -->")
        document.write_text(f"{begun}{marker}{part.replace(text, 'stale', 1)}")
    assert [place.partition(":")[0] for place in places(lint.stale_parts, tmp_path)] == sorted(
        stale
    )


def test_a_long_readme_is_found(tmp_path: Path) -> None:
    plant(tmp_path, {"README.md": "line\n" * lint.README_LINES})
    assert places(lint.long_readme, tmp_path) == []
    plant(tmp_path, {"README.md": "line\n" * (lint.README_LINES + 1)})
    assert places(lint.long_readme, tmp_path) == [f"README.md:{lint.README_LINES + 1}"]


def test_a_link_to_no_file_or_heading_is_found(tmp_path: Path) -> None:
    text = "[a](docs/a.md#one-answer), [b](https://example.com/b), [c](#here)\n[d](docs/d.md)\n[e](docs/a.md#two)\n"
    plant(
        tmp_path,
        {"README.md": f"# Here\n{text}", "docs/a.md": "## One `answer`\n[f](../README.md)\n"},
    )
    assert places(lint.broken_links, tmp_path) == ["README.md:3", "README.md:4"]


def test_a_named_file_that_is_not_there_is_found(tmp_path: Path) -> None:
    files = {
        "docs/a.md": "`docs/a.md`, `tests/gone.py`, but not `tests/<name>.py`\n\n    python tools/gone.py\n",
        f"{LIBRARY}/a.py": '"""See docs/a.md."""\n\n# as docs/gone.md says\n',
    }
    found = ["docs/a.md:1", "docs/a.md:3", f"{LIBRARY}/a.py:3"]
    assert places(lint.missing_files, plant(tmp_path, files)) == found


def test_a_command_that_is_not_there_is_found(tmp_path: Path) -> None:
    document = """`make repro` makes it, and `make gone` does not.

    make repro PROFILE=smoke    # make gone
    deepsearch score rows.jsonl --draws 0 | deepsearch gone
    deepsearch score rows.jsonl \\
        --gone
    .venv/bin/python -m tools.a && python -m tools.gone
"""
    plant(tmp_path, {"Makefile": "repro:\n", "tools/a.py": "", "docs/a.md": document})
    messages = [finding.message for finding in lint.unknown_commands(tmp_path)]
    gone = ["make gone", "deepsearch gone", "deepsearch score --gone", "python -m tools.gone"]
    assert sorted(messages) == sorted(f"there is no `{command}`" for command in gone)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("    exact_match ", "exact_match"),
        ("    answered ", "answered"),
        ("mean_tool_calls, ", "mean_tool_calls"),
    ],
)
def test_a_reward_a_stop_reason_or_a_column_that_contracts_leave_out_is_found(
    root: Path, tmp_path: Path, line: str, name: str
) -> None:
    contracts = copied(root, ("docs/contracts.md",), tmp_path) / "docs" / "contracts.md"
    assert places(lint.incomplete_contracts, tmp_path) == []

    contracts.write_text(contracts.read_text().replace(line, line.replace(name, "gone"), 1))
    messages = [finding.message for finding in lint.incomplete_contracts(tmp_path)]
    starts = {message.partition(" among")[0] for message in messages}
    assert starts == {f"'{name}' is missing", "'gone' does not exist"}


def test_findings_are_printed_and_end_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lint, "ROOT", plant(tmp_path, {"README.md": "[a](gone.md)\n"}))
    monkeypatch.setattr(lint, "RULES", [each for each in lint.RULES if each is lint.broken_links])
    with pytest.raises(SystemExit, match=r"^1$"):
        lint.main()
    assert capsys.readouterr().out == "README.md:1: the link gone.md leads to no file\n"
