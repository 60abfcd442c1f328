"""The environment that the project's commands share, and DVC's queue, which works in copies of the project."""

import csv
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from stages.environment import read_variables, variables
from tests.repository import commit_all, git
from tools import environment
from tools.imports import ROOT

PROGRAMS = Path(sys.prefix, "bin")
BARE = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}


def show(names: str, folder: Path, **environment: str) -> list[str]:
    """The variables that a Python of the environment sees in a folder."""
    code = f"import os; print(*(os.environ.get(name) for name in {names.split()}), sep='\\n')"
    command = [PROGRAMS / "python", "-c", code]
    result = subprocess.run(
        command, cwd=folder, env=BARE | environment, capture_output=True, text=True, check=True
    )
    return result.stdout.splitlines()


def test_commands_of_the_environment_know_the_servers_and_find_each_other_whatever_shell_starts_them() -> (
    None
):
    home, analytics, store, path = show(
        "PREFECT_HOME DVC_NO_ANALYTICS MLFLOW_TRACKING_URI PATH", ROOT / "src"
    )
    assert (home, analytics) == (str(ROOT / ".prefect"), "1")
    assert store == f"sqlite:///{ROOT}/mlruns/mlflow.db", (
        "a copy of the project inside it has no store of its own"
    )
    assert path.split(":")[0] == str(PROGRAMS)
    assert show("DVC_NO_ANALYTICS", ROOT, DVC_NO_ANALYTICS="0") == ["0"]


def test_outside_of_the_project_nothing_is_set(tmp_path: Path) -> None:
    assert show("PREFECT_HOME DVC_NO_ANALYTICS PATH", tmp_path) == ["None", "None", BARE["PATH"]]


def test_a_users_file_wins_over_the_projects(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    shutil.copy(ROOT / "stages/environment.py", tmp_path / "stages")
    (tmp_path / "stages/project.env").write_text(
        "# The defaults\nONE=project\nTWO=project\nTHREE=project\n"
    )
    (tmp_path / ".env").write_text('export TWO="the user\'s"\n\nTHREE=\n')
    run_it = "import os, runpy; runpy.run_path('stages/environment.py')"
    command = [
        sys.executable,
        "-c",
        f"{run_it}; print(*map(os.environ.get, ('ONE', 'TWO', 'THREE')))",
    ]
    result = subprocess.run(
        command, cwd=tmp_path, env=BARE, capture_output=True, text=True, check=True
    )
    assert result.stdout == "project the user's \n"


def test_a_file_of_variables_may_have_what_editors_and_shells_write(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(
        b"\xef\xbb\xbfFIRST=1\r\n# comment\r\n\r\nexport TWO=\"a # b\" # why\r\nTHREE='x' \r\n FOUR = 4 # why\r\n"
        b"FIVE=\r\nSIX=# why\r\nSEVEN=a#b\r\n\texport\tEIGHT=http://h/?a=b\r\n"
    )
    assert read_variables(str(path)) == (
        {
            "FIRST": "1",
            "TWO": "a # b",
            "THREE": "x",
            "FOUR": "4",
            "FIVE": "",
            "SIX": "",
            "SEVEN": "a#b",
            "EIGHT": "http://h/?a=b",
        },
        [],
    )


@pytest.mark.parametrize(
    "line", ["sk-hidden", "export KEY", "KEY='sk-hidden", '"KEY"=sk-hidden', 'KEY="sk-hidden"x']
)
def test_a_line_that_cannot_be_read_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    path = tmp_path / ".env"
    path.write_text(f"ONE=1\n{line}\nTWO=2\n")
    values, [problem] = read_variables(str(path))
    assert values == {"ONE": "1", "TWO": "2"}
    assert problem.startswith(f"{path}, line 2 is not read: ")
    assert "hidden" not in problem


def test_a_file_of_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("ONE=1\n", encoding="utf-16")
    assert read_variables(str(path)) == (
        {},
        [f"{path} is not read: it is no UTF-8 text (PowerShell writes UTF-16); save it as UTF-8."],
    )


def make_clone(folder: Path, name: str) -> Path:
    """A small clone of the project with an environment, whose editable install names the folder in full."""
    (folder / "stages").mkdir(parents=True)
    shutil.copy(ROOT / "stages/environment.py", folder / "stages")
    package = folder / "src" / "deepsearch_rl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"print({name!r}, __file__)\n")
    venv.create(folder / ".venv", symlinks=True)
    [packages] = (folder / ".venv").glob("lib/python3.*/site-packages")
    (packages / "_editable_impl_deepsearch_rl.pth").write_text(f"{folder / 'src'}\n")
    return folder


def output(folder: Path, code: str, *options: str, **variables: str) -> str:
    """What a Python of the folder's own environment prints there."""
    command = [folder / ".venv/bin/python", *options, "-c", code]
    result = subprocess.run(
        command, cwd=folder, env=BARE | variables, capture_output=True, text=True, check=False
    )
    return result.stdout + result.stderr


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = make_clone(tmp_path / "first", "own")
    monkeypatch.setattr(environment, "ROOT", folder)
    monkeypatch.setattr(environment, "ENVIRONMENT", folder / ".venv")
    environment._use_own_sources(folder / ".venv")
    environment._write_hook()
    return folder


@pytest.mark.parametrize("hook", [True, False])
def test_the_environment_of_a_copied_or_moved_clone_is_its_own(
    clone: Path, tmp_path: Path, hook: bool
) -> None:
    copy = tmp_path / "copy of it"
    shutil.copytree(clone, copy, symlinks=True)
    if not hook:  # an older revision has another one
        (copy / "stages/environment.py").unlink()
    assert output(copy, "import deepsearch_rl") == f"own {copy}/src/deepsearch_rl/__init__.py\n"
    if hook:
        assert output(copy, "import os; print(os.environ['PREFECT_HOME'])") == f"{copy}/.prefect\n"
    moved = copy.rename(tmp_path / "moved")
    shutil.rmtree(clone)
    assert output(moved, "import deepsearch_rl") == f"own {moved}/src/deepsearch_rl/__init__.py\n"


def test_no_program_of_the_environment_names_its_folder() -> None:
    programs = [path for path in PROGRAMS.iterdir() if path.is_file() and not path.is_symlink()]
    assert {"dvc", "deepsearch", "prefect", "mlflow"} <= {path.name for path in programs}
    assert [
        path.name for path in programs if f"#!{PROGRAMS}".encode() in path.read_bytes()[:500]
    ] == []


def test_modules_of_a_foreign_pythonpath_come_last(clone: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "ros"
    for name in ("deepsearch_rl", "in_both"):
        (foreign / name).mkdir(parents=True)
        (foreign / name / "__init__.py").write_text("print('foreign')\n")
    [packages] = (clone / ".venv").glob("lib/python3.*/site-packages")
    (packages / "in_both.py").write_text("print('locked')\n")
    (foreign / "only_there.py").write_text("print('found')\n")
    code = "import deepsearch_rl, in_both, only_there"
    own = f"own {clone}/src/deepsearch_rl/__init__.py\nlocked\nfound\n"
    assert output(clone, code, PYTHONPATH=f"{foreign}:") == own


def test_the_sources_of_a_copy_inside_the_project_stay_first(clone: Path) -> None:
    inside = clone / ".dvc" / "tmp" / "exps" / "copy" / "src"
    (inside / "deepsearch_rl").mkdir(parents=True)
    (inside / "deepsearch_rl" / "__init__.py").write_text("print('the copy')\n")
    assert output(clone, "import deepsearch_rl", PYTHONPATH=str(inside)) == "the copy\n"


def test_an_unreadable_line_is_said_once_for_a_process_and_those_that_it_starts(
    clone: Path,
) -> None:
    (clone / ".env").write_text("ONE=1\nnonsense\n")
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"ONE\"])'])"
    warning = f"warning: {clone}/.env, line 2 is not read: it is not NAME=value, or its quote does not end.\n"
    assert output(clone, code) == f"1\n{warning}"


def test_a_missing_file_has_no_variables(tmp_path: Path) -> None:
    assert variables(str(tmp_path / ".env")) == {}


def test_an_interpreter_is_found_above_and_runs_the_sources_of_the_current_folder(
    tmp_path: Path,
) -> None:
    copy = tmp_path / "work" / "copy"
    (copy / "src" / "deepsearch_rl").mkdir(parents=True)
    (copy / "src" / "deepsearch_rl" / "__init__.py").write_text("print('the copy')")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    command = [ROOT / "tools/python", ".venv/bin/python", "-c", "import deepsearch_rl"]
    assert (
        subprocess.run(command, cwd=copy, capture_output=True, text=True, check=True).stdout
        == "the copy\n"
    )
    command[1] = ".venvs/sft/bin/python"
    result = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(
        f"error: there is no .venvs/sft/bin/python in {copy} or above it: run `make env"
    )


def test_a_part_is_installed_once_and_is_kept_up_to_date_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[list[str]] = []
    monkeypatch.setattr(environment, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(environment, "_digest", lambda: "a-digest")
    monkeypatch.setattr(environment, "_uv", lambda: ["uv"])
    monkeypatch.setattr(environment, "_use_own_sources", lambda _: None)
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
    environment.STAMP.write_text("")
    assert make() == [["--extra=all"]], "a full disk left the stamp empty"
    assert make("--extra", "s3") == [["--extra=all", "--extra=s3"]]
    assert make() == make("--extra", "s3") == []
    monkeypatch.setattr(environment, "_digest", lambda: "another-digest")
    assert make() == [["--extra=all", "--extra=s3"]], "another lock"
    assert make("--all-extras") == [["--all-extras"]]
    assert make("--extra", "gs") == []
    monkeypatch.setattr(environment, "INTERPRETER", tmp_path / "python")
    assert make() == [["--all-extras"]], (
        "on another machine the environment's Python is somewhere else"
    )


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


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_queued_experiments_run_and_can_be_compared(tmp_path: Path) -> None:
    def dvc(*arguments: str) -> str:
        command, environment = ["dvc", *arguments], BARE | {"PATH": f"{PROGRAMS}:{BARE['PATH']}"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/python", tmp_path / "tools")
    (tmp_path / "params.yaml").write_text("number: 1\n")
    (tmp_path / "double.py").write_text(
        "import json, yaml\nnumber = yaml.safe_load(open('params.yaml'))['number']\n"
        "json.dump({'double': 2 * number}, open('metrics.json', 'w'))\n"
    )
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  double:\n    cmd: tools/python .venv/bin/python double.py\n    params: [number]\n"
        "    metrics: [{metrics.json: {cache: false}}]\n"
    )
    (tmp_path / ".gitignore").write_text(".venv\n")
    git(tmp_path, "init", "-q")
    dvc("init", "-q")
    commit_all(tmp_path, "A project")
    for number in (2, 3):
        dvc("exp", "run", "--queue", "-S", f"number={number}")
    dvc("exp", "run", "--run-all", "--jobs", "2")
    rows = csv.DictReader(dvc("exp", "show", "--csv").splitlines())
    assert {"4", "6"} <= {row["double"] for row in rows}
