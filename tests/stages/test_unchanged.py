"""A stage whose inputs change while it runs does not end well, and nothing resumes from what it wrote."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deepsearch_rl.core import unchanged
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.scratch import CHANGED_FILE, Scratch, unfinished
from deepsearch_rl.core.stage_entry import run

SOURCE = Path("src", "loss.py")
PARAMS = "profile: tiny\nparams: params.yaml\nrl: {rate: 1}\nother: 1\n"
WAIT_S = 30


@pytest.fixture
def run_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a main as the stage ``train`` of a small project, and returns its error, empty if it has none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deepsearch_rl.core.stage_entry.ROOT", tmp_path)
    monkeypatch.setattr(unchanged, "POLL_S", 0.01)
    monkeypatch.setattr(sys, "argv", ["stages/train.py", "params.yaml"])
    SOURCE.parent.mkdir()
    SOURCE.write_text("loss = 1")
    Path("data").mkdir()
    Path("data", "rows.jsonl").write_text("{}")
    Path("params.yaml").write_text(PARAMS)
    entry = "train: {params: [{params.yaml: [rl]}], deps: [src/loss.py, data/rows.jsonl]}"
    Path("dvc.yaml").write_text(f"stages: {{{entry}}}")
    monkeypatch.setattr(unchanged, "LOADED", time.time())

    def call(main: Callable[..., None]) -> str:
        try:
            run(main)
        except SystemExit as ended:
            return str(ended.code)
        return ""

    return call


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("src/loss.py", "loss = 2", r"src/loss.py (changed)"),
        ("data/rows.jsonl", "{} {}", "data/rows.jsonl (changed)"),
        (
            "params.yaml",
            "profile: tiny\nparams: params.yaml\nrl: {rate: 2}\n",
            "params.yaml: rl.rate (was 1.0, is 2.0)",
        ),
        (
            "params.yaml",
            "rl: {rate: 1}",
            "params.yaml or the graph beside it cannot be read any more",
        ),
    ],
)
def test_an_edit_during_the_run_is_an_error_that_names_it(
    run_stage: Callable[..., str], path: str, text: str, named: str
) -> None:
    def main(_: Profile, scratch: Scratch) -> None:
        (scratch.path / "log").touch()
        Path(path).write_text(text)

    error = run_stage(main)
    assert error.startswith("error: train is not recorded")
    assert named in error
    assert [(folder / CHANGED_FILE).exists() for folder in unfinished(Path("work", "tiny"))] == [
        True
    ]


def test_an_edit_that_is_put_back_is_seen_and_told_at_once(
    run_stage: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    def main(_: Profile) -> None:
        SOURCE.write_text("loss = 2")
        deadline = time.monotonic() + WAIT_S
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        SOURCE.write_text("loss = 1")

    assert "src/loss.py (changed)" in run_stage(main)
    (warning,) = caplog.messages
    assert warning.startswith("train will not be recorded")
    assert "src/loss.py" in warning


def test_what_the_stage_does_not_depend_on_and_a_touched_file_may_change(
    run_stage: Callable[..., str],
) -> None:
    def main(_: Profile) -> None:
        SOURCE.touch()
        Path("params.yaml").write_text(PARAMS.replace("other: 1", "other: 2"))
        Path("src", "other.py").touch()

    assert run_stage(main) == ""
    assert unfinished(Path("work", "tiny")) == []


def test_a_source_that_was_written_while_the_process_was_loading_stops_it_before_it_begins(
    run_stage: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged, "LOADED", SOURCE.stat().st_mtime - 1)
    begun: list[Profile] = []

    def main(profile: Profile) -> None:
        begun.append(profile)

    error = run_stage(main)
    assert error.startswith("error: train did not begin")
    assert "src/loss.py" in error
    assert begun == []


def test_a_run_that_fails_by_itself_after_an_edit_is_not_resumed_either(
    run_stage: Callable[..., str],
) -> None:
    def main(_: Profile, scratch: Scratch) -> None:
        (scratch.path / "log").touch()
        SOURCE.write_text("loss = 2")
        raise OSError("its own error")

    assert run_stage(main) == "error: its own error"
    (folder,) = unfinished(Path("work", "tiny"))
    assert (folder / CHANGED_FILE).exists()
