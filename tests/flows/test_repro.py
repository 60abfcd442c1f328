"""`make repro`: a real DVC project, without Prefect."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.processes import LOOPBACK
from flows.repro import is_unchanged, repro
from tests.flows.conftest import (
    CHAIN,
    PROFILE,
    TAKING_TURNS,
    MakeProject,
    changed_stages,
    fill_project,
    python,
)
from tests.ports import free_port
from tools import ROOT

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class FirstRun:
    """A project in which `make repro` has run, and what that printed."""

    project: Path
    lines: list[str]


def repro_lines(project: Path, *arguments: str) -> list[str]:
    run = subprocess.run(
        python("flows.repro", *arguments),
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    return run.stdout.decode().splitlines()


@pytest.fixture(scope="module")
def first_run(empty_project: Path, tmp_path_factory: pytest.TempPathFactory) -> FirstRun:
    folder = tmp_path_factory.mktemp("first") / "project"
    project = fill_project(empty_project, folder, CHAIN, f"{PROFILE}number: 12\n")
    return FirstRun(project, repro_lines(project))


@pytest.fixture
def project(first_run: FirstRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that project, which is the working directory."""
    shutil.copytree(first_run.project, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_result_is_dvc_repros_and_lines_name_their_stage(
    first_run: FirstRun, project: Path
) -> None:
    first = first_run.lines
    assert "write: Running stage 'write':" in first
    assert "write: > echo ran >> runs.log; echo 12 > number.txt" in first
    assert "round: 1/1 digits" in first
    assert not [
        line for line in first if "git add" in line or "autostage" in line or "dvc push" in line
    ]
    assert first[-1] == "dvc: 3 of 3 stages ran; all are up to date"
    assert changed_stages(project) == set()
    assert repro_lines(project) == ["dvc: 0 of 3 stages ran; all are up to date"]
    forced = repro_lines(project, "tiny", "write", "--force")
    assert forced[-1] == "dvc: 1 of 1 stages ran; all are up to date"
    assert (project / "runs.log").read_text() == "ran\n" * 2


def test_a_flow_without_work_starts_no_prefect_server_and_notices_every_change(
    project: Path,
) -> None:
    address = f"http://{LOOPBACK}:{free_port()}/api"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": address}
    command = python("flows.reproduce", "tiny", "--skip-unchanged")
    run = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout == (
        "tiny: all stages are up to date. No Prefect server answers, so no flow run is recorded.\n"
    )
    assert is_unchanged("tiny", (), "a test")
    (project / "digit.txt").unlink()
    assert not is_unchanged("tiny", (), "a test")
    assert is_unchanged("tiny", ("write",), "a test")
    (project / "params.yaml").write_text(f"{PROFILE}number: 13\n")
    assert not is_unchanged("tiny", ("write",), "a test")


def test_an_output_that_is_gone_comes_back(project: Path) -> None:
    (project / "digit.txt").unlink()
    assert repro("tiny") == {"write": "Cached", "round": "Restored", "report": "Cached"}
    assert (project / "digit.txt").read_text() == "1\n"


def test_one_job_runs_one_stage_at_a_time(make_project: MakeProject) -> None:
    make_project(TAKING_TURNS)
    assert set(repro("tiny", jobs=1).values()) == {"Completed"}


def test_a_conflict_that_git_left_is_named_before_anything_runs(make_project: MakeProject) -> None:
    root = make_project(CHAIN, f"{PROFILE}number: 12\n")
    (root / "dvc.lock").write_text("<<<<<<< HEAD\nschema: '2.0'\n=======\n>>>>>>> other\n")
    with pytest.raises(ConfigError, match=r"^dvc\.lock, line 1: git left both sides"):
        repro("tiny")
    assert not (root / "runs.log").exists()
