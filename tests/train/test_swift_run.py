"""Running ms-swift's commands, with a cheap program in its place."""

from pathlib import Path

import pytest

from deepsearch_rl.core.errors import CommandError
from deepsearch_rl.train.swift import run_swift


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with swift's layout; tests write the modules of its subcommands."""
    package = tmp_path / "fakeswift" / "cli"
    package.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for variable in ("NPROC_PER_NODE", "NNODES"):
        monkeypatch.delenv(variable, raising=False)
    return package


@pytest.mark.slow
def test_output_goes_to_the_log_and_line_by_line_to_the_reader(
    program: Path, tmp_path: Path
) -> None:
    (program / "hello.py").write_text(
        "import sys\nprint('one\\rtwo', *sys.argv[1:])\nprint('three', file=sys.stderr)\n"
    )
    lines: list[str] = []
    run_swift(["fakeswift", "hello", "--flag", "x"], tmp_path / "logs" / "swift.log", lines.append)
    assert lines == ["one", "two --flag x", "three"]
    assert (tmp_path / "logs" / "swift.log").read_text() == "".join(f"{line}\n" for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["NPROC_PER_NODE", "NNODES"])
def test_with_processes_per_node_swifts_own_launcher_runs(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "2")
    (program / "main.py").write_text(
        f"import os, sys\nprint('launcher', os.environ['{variable}'], *sys.argv[1:])\n"
    )
    lines: list[str] = []
    run_swift(["fakeswift", "hello", "--flag", "x"], tmp_path / "swift.log", lines.append)
    assert lines == ["launcher 2 hello --flag x"]


@pytest.mark.slow
def test_a_failure_names_the_command_its_exit_code_its_log_and_its_last_lines(
    program: Path, tmp_path: Path
) -> None:
    (program / "boom.py").write_text("for i in range(99): print('line', i)\nraise SystemExit(7)\n")
    with pytest.raises(CommandError) as caught:
        run_swift(["fakeswift", "boom"], tmp_path / "swift.log", lambda _: None)
    message = str(caught.value)
    assert "`fakeswift boom` ended with exit code 7" in message
    assert str(tmp_path / "swift.log") in message
    assert "line 98" in message
    assert "line 80" not in message
