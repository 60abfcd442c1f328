"""A small real DVC project in a temporary folder, and one real Prefect server for all flow tests."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from prefect.testing.utilities import prefect_test_harness

PROFILE = "profile: tiny\nflow: {gpu_stages: [], outside_stages: []}\n"


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


MakeProject = Callable[..., Path]


@pytest.fixture(scope="session")
def empty_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with fresh git and DVC repositories; making them takes seconds, copying them does not."""
    folder = tmp_path_factory.mktemp("project")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=folder, check=True)
    return folder


@pytest.fixture
def make_project(empty_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeProject:
    """Make a git and DVC project of the given stages in a folder that becomes the working directory."""

    def make(stages: dict[str, object], params: str = PROFILE) -> Path:
        shutil.copytree(empty_project, tmp_path, dirs_exist_ok=True)
        (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
        (tmp_path / "params.yaml").write_text(params)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return make
