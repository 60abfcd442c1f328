"""The table of experiments, from a real DVC project's."""

import subprocess
import sys
from pathlib import Path

import pytest

from graph_commands.experiments import read_results, read_states, render
from tests.flows.conftest import MakeProject
from tests.repository import commit_all, git

ROOT = Path(__file__).resolve().parents[2]
PARAMS = "profile: tiny\nmodels: {base: b, sft: s}\nrl: {dataset: world, group_size: 8, learning_rate: 0.1}\n"
SCORE = """
import json, pathlib, yaml
size = yaml.safe_load(open("params.yaml"))["rl"]["group_size"]
pathlib.Path("reports/tiny").mkdir(parents=True, exist_ok=True)
f1 = {"world": {"base": 0.25, "sft": size / 100}, "other": {"base": 1.0}}
pathlib.Path("reports/tiny/metrics.json").write_text(json.dumps({"f1": f1, "em": {"world": {"base": 0.5}}}))
"""


def dvc(root: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=root, check=True, capture_output=True
    )


def branch(root: Path) -> str:
    return git(root, "branch", "--show-current")


@pytest.fixture
def project(make_project: MakeProject) -> Path:
    command = f"{sys.executable} score.py"
    metrics = [{"reports/tiny/metrics.json": {"cache": False}}]
    root = make_project({"score": {"cmd": command, "params": ["rl"], "metrics": metrics}}, PARAMS)
    (root / "score.py").write_text(SCORE)
    dvc(root, "repro")
    commit_all(root, "first")
    return root


@pytest.mark.slow
def test_experiments_show_f1_and_what_differs_from_their_commit(project: Path) -> None:
    dvc(
        project,
        "exp",
        "run",
        "--name",
        "of-16",
        "-S",
        "rl.group_size=16",
        "-S",
        "rl.learning_rate=0.5",
    )
    (project / "note").touch()
    git(project, "restore", ".")
    commit_all(project, "an experiment of an older commit is listed too")
    dvc(project, "exp", "run", "--queue", "--name", "of-32", "-S", "rl.group_size=32")
    results = list(read_results(read_states(project), "tiny"))
    assert [result.name.split()[-1] for result in results[:2]] == ["workspace", branch(project)]
    changes = {result.name: (result.f1.get("sft"), result.changes) for result in results[1:]}
    assert changes["  of-16"] == (0.16, ("rl.group_size=16", "rl.learning_rate=0.5"))
    assert changes["  of-32"][1] == ("queued", "rl.group_size=32")
    assert all(result.f1.keys() <= {"base", "sft"} for result in results), (
        "one set's scores, the in-domain set's"
    )

    lines = render(results, ["base", "sft"], 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert next(line.split() for line in lines if "of-16" in line)[-3:] == [
        "0.250",
        "0.160",
        "rl.group_size=16,",
    ]


@pytest.mark.slow
def test_an_unknown_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS)
    command = [str(Path(sys.executable).with_name("deepsearch")), "experiments", "tini"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr.startswith("error: ")) == (1, True)
    assert "Did you mean 'tiny'" in answer.stderr
