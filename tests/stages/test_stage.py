"""How a stage runs: state, scratch folder, edits while it runs, and its command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.core.stage import (
    HASHED_BELOW_BYTES,
    OUTSIDE_STATUS,
    Scratch,
    Stage,
    StageChangedError,
    run_stage,
)
from tests.conftest import ROOT

STAGE = Stage(sections=("chunk",), packages=("data",), inputs=("data/{profile}/corpora",))
PROGRAM = '''
"""A stage."""
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.stage import Stage, run

def main(profile):
    raise {error}("no such thing")

run(Stage(sections=(), packages=()), main)
'''


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A small project with one input, one package and a params file."""
    monkeypatch.chdir(tmp_path)
    for name in ("stages/chunk.py", "packages.txt", "src/deepsearch_rl/data/chunking.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before\n")
    corpora = tmp_path / "data" / "tiny" / "corpora"
    corpora.mkdir(parents=True)
    (corpora / "world.jsonl").write_text("{}\n")
    (tmp_path / "params.yaml").write_text(
        "profile: tiny\npackages: packages.txt\nchunk: {size: 48, reader: 'own.py:read'}\n"
        "agent: {concurrency: 4, max_turns: 6}\n"
    )
    (tmp_path / "own.py").write_text("read = 1\n")
    return load_profile(Path("params.yaml"))


def killed(profile: Profile, stage: Stage = STAGE) -> Path:
    """Run a stage until it is killed, and return its scratch folder with a checkpoint in it."""
    folders: list[Path] = []

    def main(_: Profile, scratch: Scratch) -> None:
        (scratch.path / "checkpoint").write_text("1")
        folders.append(scratch.path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_stage(stage, main, profile, "chunk", "")
    return folders[0]


def resumes(profile: Profile, stage: Stage = STAGE) -> bool:
    """Run a stage to its end, and return whether it found the checkpoint of a killed run."""
    found: list[bool] = []

    def main(_: Profile, scratch: Scratch) -> None:
        found.append((scratch.path / "checkpoint").is_file())

    run_stage(stage, main, load_profile(profile.path), "chunk", "")
    return found[0]


def test_a_killed_run_is_continued_and_its_folder_is_gone_after_success(profile: Profile) -> None:
    folder = killed(profile)
    assert resumes(profile)
    assert not folder.exists()
    assert not resumes(profile)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("src/deepsearch_rl/data/chunking.py", "src/deepsearch_rl/data/chunking.py (changed)"),
        ("src/deepsearch_rl/data/new.py", "src/deepsearch_rl/data/new.py (new)"),
        ("data/tiny/corpora/world.jsonl", "data/tiny/corpora/world.jsonl (changed)"),
        ("packages.txt", "packages.txt (changed)"),
        ("own.py", "own.py (changed)"),
    ],
)
def test_a_run_starts_anew_after_an_edit_and_says_what_changed(
    profile: Profile, caplog: pytest.LogCaptureFixture, path: str, named: str
) -> None:
    killed(profile)
    Path(path).write_text("after\n")
    assert not resumes(profile)
    assert named in caplog.text


def test_a_changed_param_counts_and_an_operational_one_does_not(
    profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(sections=("agent",), packages=())
    killed(profile, stage)
    text = profile.path.read_text()
    profile.path.write_text(text.replace("concurrency: 4", "concurrency: 8"))
    assert resumes(profile, stage)

    killed(load_profile(profile.path), stage)
    profile.path.write_text(text.replace("max_turns: 6", "max_turns: 7"))
    assert not resumes(profile, stage)
    assert "agent.max_turns (was 6, is 7)" in caplog.text


def test_an_edit_in_a_package_that_the_stage_does_not_declare_changes_nothing(
    profile: Profile,
) -> None:
    killed(profile)
    Path("src/deepsearch_rl/cli").mkdir()
    Path("src/deepsearch_rl/cli/main.py").write_text("other\n")
    Path("src/deepsearch_rl/data/.chunking.py.swp").write_text("an editor's\n")
    assert resumes(profile)


def test_a_stage_whose_input_is_edited_while_it_runs_fails_and_is_not_continued(
    profile: Profile,
) -> None:
    def main(_: Profile, scratch: Scratch) -> None:
        (scratch.path / "checkpoint").touch()
        Path("src/deepsearch_rl/data/chunking.py").write_text("edited\n")

    with pytest.raises(StageChangedError, match=r"data/chunking.py \(changed\)"):
        run_stage(STAGE, main, profile, "chunk", "")
    assert not resumes(profile)


def test_a_large_file_counts_by_size_and_time_and_a_dangling_link_as_missing(
    profile: Profile,
) -> None:
    large = Path("data/tiny/corpora/vectors.bin")
    with large.open("wb") as file:
        file.truncate(HASHED_BELOW_BYTES)
    Path("data/tiny/corpora/gone.jsonl").symlink_to("nowhere")
    state = STAGE.read_state(profile, "", "chunk")
    assert state["data/tiny/corpora/gone.jsonl"] == "missing"

    os.utime(large, ns=(1, 1))
    assert STAGE.read_state(profile, "", "chunk") != state


def test_inputs_are_named_by_profile_item_and_params(profile: Profile) -> None:
    stage = Stage(
        sections=(),
        packages=(),
        inputs=("models/{profile}/{item}", "{chunk.reader}", "{models.{item}}"),
    )
    values = {**profile.values, "models": {"qwen2.5": "models/other/qwen"}}
    named = stage.input_paths(Profile(profile.path, values), "qwen2.5")
    assert named == ["models/tiny/qwen2.5", "own.py:read", "models/other/qwen"]


@pytest.mark.parametrize(
    ("error", "status"), [("ConfigError", 1), ("EndpointError", OUTSIDE_STATUS)]
)
def test_an_error_is_one_paragraph_and_a_server_that_is_away_has_a_status_of_its_own(
    profile: Profile, error: str, status: int
) -> None:
    program = profile.path.parent / "stages" / "failing.py"
    program.write_text(PROGRAM.format(error=error))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(
        [sys.executable, program, "params.yaml"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (status, "error: no such thing\n")
