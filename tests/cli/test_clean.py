"""`deepsearch clean` lists what no stage resumes from, and removes it only when it is told to."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.scratch import open_scratch
from deepsearch_rl.core.stage_state import StageState, read_state

WORK = Path("work", "tiny")


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project of one stage with one source file."""
    monkeypatch.chdir(tmp_path)
    Path("src").mkdir()
    Path("src", "loss.py").write_text("loss = 1")
    Path("params.yaml").write_text("{profile: tiny, params: params.yaml, rl: {rate: 1}}")
    Path("dvc.yaml").write_text(
        "stages: {train: {params: [{params.yaml: [rl]}], deps: [src/loss.py]}}"
    )


def leave_behind() -> Path:
    """Leave the scratch folder of a stage that was cut off, with a megabyte in it."""
    with open_scratch(WORK, state(), "train", afresh=False) as scratch:
        (scratch.path / "checkpoint").write_bytes(bytes(1_000_000))
        scratch.keep()
    return scratch.path


def state() -> StageState:
    return read_state(load_profile(Path("params.yaml")), "train", Path())


def clean(*options: str) -> str:
    return CliRunner().invoke(app, ["clean", "tiny", *options], catch_exceptions=False).output


def test_a_folder_of_other_code_is_listed_and_removed_with_yes() -> None:
    folder = leave_behind()
    assert "There is nothing to remove." in clean()
    Path("src", "loss.py").write_text("loss = 2")
    listed = clean()
    assert f"{folder} " in listed
    assert "of other code, params or data" in listed
    assert "1.0 MB; `--yes` removes them." in listed
    assert folder.is_dir()
    assert "1.0 MB freed." in clean("--yes")
    assert not folder.exists()


def test_what_a_stage_would_resume_from_goes_only_with_all() -> None:
    folder = leave_behind()
    clean("--yes")
    assert folder.is_dir()
    assert "the next run of its stage resumes from it" in clean("--all", "--yes")
    assert not folder.exists()


def test_a_stage_that_the_graph_no_longer_has_is_named() -> None:
    leave_behind()
    Path("dvc.yaml").write_text("stages: {other: {cmd: a}}")
    assert "the graph has no such stage any more" in clean()
