"""A small project with the real flows/, in a temporary folder with git and DVC repositories."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

ROOT = Path(__file__).resolve().parents[2]
PARAMS = "profile: tiny\nflow: {gpu_stages: [], outside_stages: []}\nrequires: {}\n"
CHAIN = {
    "write": {"cmd": "echo ran >> runs.log; echo 12 > number.txt", "outs": ["number.txt"]},
    "round": {
        "cmd": "cut -c1 number.txt > digit.txt; echo 'round: 1/1 digits'",
        "deps": ["number.txt"],
        "outs": ["digit.txt"],
    },
    "report": {
        "cmd": "mkdir -p reports/tiny; echo '| digit |' | cat - digit.txt > reports/tiny/f1_table.md",
        "deps": ["digit.txt"],
        "outs": ["reports/tiny/f1_table.md"],
    },
}

MakeProject = Callable[..., Path]


def module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of the working directory."""
    return [sys.executable, "-m", name, *arguments]


def output(folder: Path, command: list[str], **variables: str) -> str:
    """Run a command in a project, and return what it prints to both streams."""
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    ).stdout


@pytest.fixture(scope="session")
def empty_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project without stages; making its repositories takes seconds, copying them does not."""
    folder = tmp_path_factory.mktemp("project")
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], cwd=folder, check=True)
    Repo.init(str(folder)).close()
    (folder / ".gitignore").write_text("work\n.prefect\nmlflow.db\n__pycache__\n")
    shutil.copytree(ROOT / "flows", folder / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "prefect.toml", folder)
    return folder


@pytest.fixture(scope="session")
def make_project(empty_project: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeProject:
    """Make a project of the given stages and params."""

    def make(stages: Mapping[str, object] = CHAIN, params: str = PARAMS) -> Path:
        project = tmp_path_factory.mktemp("made") / "project"
        shutil.copytree(empty_project, project)
        (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": dict(stages)}))
        (project / "params.yaml").write_text(params)
        return project

    return make
