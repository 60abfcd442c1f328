"""The environment that the project's commands share, and DVC's queue, which works in copies of the project."""

import csv
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import environment
from scripts.imports import ROOT
from stages.environment import variables

PROGRAMS = Path(sys.prefix, "bin")
BARE = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}


def show(names: str, folder: Path, **environment: str) -> list[str]:
    """The variables that a Python of the environment sees in a folder."""
    code = f"import os; print(*(os.environ.get(name) for name in {names.split()}), sep='\\n')"
    command = [PROGRAMS / "python", "-c", code]
    result = subprocess.run(command, cwd=folder, env=BARE | environment, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def test_commands_of_the_environment_know_the_servers_and_find_each_other_whatever_shell_starts_them() -> None:
    home, analytics, store, path = show("PREFECT_HOME DVC_NO_ANALYTICS MLFLOW_TRACKING_URI PATH", ROOT / "src")
    assert (home, analytics) == (str(ROOT / ".prefect"), "1")
    assert store == f"sqlite:///{ROOT}/mlruns/mlflow.db", "a copy of the project inside it has no store of its own"
    assert path.split(":")[0] == str(PROGRAMS)
    assert show("DVC_NO_ANALYTICS", ROOT, DVC_NO_ANALYTICS="0") == ["0"]


def test_outside_of_the_project_nothing_is_set(tmp_path: Path) -> None:
    assert show("PREFECT_HOME DVC_NO_ANALYTICS PATH", tmp_path) == ["None", "None", BARE["PATH"]]


def test_a_users_file_wins_over_the_projects(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    shutil.copy(ROOT / "stages/environment.py", tmp_path / "stages")
    (tmp_path / "stages/project.env").write_text("# The defaults\nONE=project\nTWO=project\nTHREE=project\n")
    (tmp_path / ".env").write_text('export TWO="the user\'s"\n\nTHREE=\n')
    run_it = "import os, runpy; runpy.run_path('stages/environment.py')"
    command = [sys.executable, "-c", f"{run_it}; print(*map(os.environ.get, ('ONE', 'TWO', 'THREE')))"]
    result = subprocess.run(command, cwd=tmp_path, env=BARE, capture_output=True, text=True, check=True)
    assert result.stdout == "project the user's \n"


def test_a_missing_file_has_no_variables(tmp_path: Path) -> None:
    assert variables(str(tmp_path / ".env")) == {}


def test_an_interpreter_is_found_above_and_runs_the_sources_of_the_current_folder(tmp_path: Path) -> None:
    copy = tmp_path / "work" / "copy"
    (copy / "src" / "deepsearch_rl").mkdir(parents=True)
    (copy / "src" / "deepsearch_rl" / "__init__.py").write_text("print('the copy')")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    command = [ROOT / "scripts/python", ".venv/bin/python", "-c", "import deepsearch_rl"]
    assert subprocess.run(command, cwd=copy, capture_output=True, text=True, check=True).stdout == "the copy\n"
    command[1] = ".venvs/sft/bin/python"
    result = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: there is no .venvs/sft/bin/python in {copy} or above it: run `make env")


def test_a_part_is_installed_once_and_is_kept_up_to_date_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[list[str]] = []
    monkeypatch.setattr(environment, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(environment, "_digest", lambda: "a-digest")
    monkeypatch.setattr(environment, "_uv", lambda: ["uv"])
    monkeypatch.setattr(environment, "_write_hook", lambda: None)
    monkeypatch.setattr(environment, "_record_versions", lambda: None)
    monkeypatch.setattr(environment, "_install", lambda _, extras: installed.append(extras))

    def make(*arguments: str) -> list[list[str]]:
        installed.clear()
        monkeypatch.setattr(sys, "argv", ["environment.py", *arguments])
        environment.main()
        return installed

    assert make() == [["--extra=all"]]
    assert make() == []
    assert make("--extra", "s3") == [["--extra=all", "--extra=s3"]]
    assert make() == make("--extra", "s3") == []
    monkeypatch.setattr(environment, "_digest", lambda: "another-digest")
    assert make() == [["--extra=all", "--extra=s3"]], "another lock"
    assert make("--all-extras") == [["--all-extras"]]
    assert make("--extra", "gs") == []


def test_an_environment_in_which_another_tool_installed_a_version_is_not_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ENVIRONMENT", tmp_path)
    packages = tmp_path / "lib/python3.11/site-packages"
    (packages / "torch-2.13.0+cpu.dist-info").mkdir(parents=True)
    before = environment._digest()
    (packages / "torch-2.13.0+cpu.dist-info").rename(packages / "torch-2.12.0.dist-info")
    assert environment._digest() != before
    (packages / "torch-2.12.0.dist-info").rename(packages / "torch-2.13.0+cpu.dist-info")
    assert environment._digest() == before


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_queued_experiments_run_and_can_be_compared(tmp_path: Path) -> None:
    def dvc(*arguments: str) -> str:
        command, environment = ["dvc", *arguments], BARE | {"PATH": f"{PROGRAMS}:{BARE['PATH']}"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/python", tmp_path / "scripts")
    (tmp_path / "params.yaml").write_text("number: 1\n")
    (tmp_path / "double.py").write_text(
        "import json, yaml\nnumber = yaml.safe_load(open('params.yaml'))['number']\n"
        "json.dump({'double': 2 * number}, open('metrics.json', 'w'))\n"
    )
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  double:\n    cmd: scripts/python .venv/bin/python double.py\n    params: [number]\n"
        "    metrics: [{metrics.json: {cache: false}}]\n"
    )
    (tmp_path / ".gitignore").write_text(".venv\n")
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    dvc("init", "-q")
    for command in (["add", "-A"], [*identity, "commit", "-q", "-m", "A project"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    for number in (2, 3):
        dvc("exp", "run", "--queue", "-S", f"number={number}")
    dvc("queue", "start")
    deadline = time.monotonic() + 240
    while (status := dvc("queue", "status")).count("Success") < 2:
        assert "Failed" not in status, status
        assert time.monotonic() < deadline, status
        time.sleep(1)
    rows = csv.DictReader(dvc("exp", "show", "--csv").splitlines())
    assert {"4", "6"} <= {row["double"] for row in rows}
