"""`deepsearch compare` over a real DVC repository and a real MLflow store, which hold the same two reports."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from dvc.repo import Repo
from typer.testing import CliRunner, Result

from deepsearch_rl.cli.score import compare_command
from deepsearch_rl.track.build_bundle import build_bundle
from deepsearch_rl.track.bundle import Provenance, read_bundle
from deepsearch_rl.track.upload import upload
from graph_commands.compare import ReportComparison
from tests.repository import commit_all, git
from tests.track.conftest import CONFIG, PROVENANCE, QUESTIONS, SEED, make_results, new_store

# Every test reads a DVC repository, which takes seconds to make
pytestmark = pytest.mark.slow
RIGHT = {"first": 8, "second": 5}
EDITED: dict[str, object] = {
    "tags": PROVENANCE.tags | {"git.commit": "def"},
    "params": {"seed": 0, "rl": {"learning_rate": 0.9, "steps": 3}},
}


def command(folder: Path, *line: str) -> str:
    return subprocess.run(
        line, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC project with the first report at HEAD~1 and in MLflow, the second at HEAD, in MLflow, and in the folder."""
    root, made = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("results")
    git(root, "init", "-q")
    Repo.init(str(root)).close()
    (root / "params.yaml").write_text("profile: tiny\n")
    store = new_store(root / "mlruns")
    for name, right in RIGHT.items():
        (made / name).mkdir()
        results = make_results(made / name, right)
        provenance = Provenance(**PROVENANCE.model_dump() | (EDITED if name == "second" else {}))
        bundle = root / "data" / "tiny" / "track"
        shutil.rmtree(bundle, ignore_errors=True)
        build_bundle(results, provenance, CONFIG, SEED, bundle)
        with Repo(str(root)) as repo:
            repo.add(str(bundle))
        commit_all(root, name)
        git(root, "tag", name)
        assert upload(bundle, store, 30)
    return root


def compare(project: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.chdir(project)
    app = typer.Typer()
    app.command()(compare_command)
    return CliRunner().invoke(app, arguments)


def compared(
    project: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> ReportComparison:
    result = compare(project, monkeypatch, first, second, "--json", "--draws", "200")
    assert result.exit_code == 0, result.exception
    return ReportComparison.model_validate(json.loads(result.stdout))


def test_two_revisions_differ_in_settings_code_and_f1(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compared(project, monkeypatch, "HEAD~1", "second")
    assert found.code == ("abc", "def")
    assert found.params == {"rl.learning_rate": ("0.5", "0.9"), "rl.steps": (None, "3")}
    assert found.data == {}, "the models of both reports have the same weights"
    rows = {(row.model, row.run): row for row in found.f1}
    row = rows["sft", "multihoprag"]
    assert (row.first, row.second) == (pytest.approx(7 / QUESTIONS), pytest.approx(5 / QUESTIONS))
    assert (row.shared, row.questions) == (QUESTIONS, QUESTIONS)
    assert row.difference is not None
    assert row.difference.mean == pytest.approx(2 / QUESTIONS)
    assert row.difference.low < row.difference.mean < row.difference.high
    unchanged = rows["base", "multihoprag"]
    assert unchanged.difference is not None
    assert (unchanged.difference.mean, unchanged.difference.p_value) == (0, 1)


def test_mlflow_and_git_give_the_same_comparison(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = read_bundle(project / "data" / "tiny" / "track").name
    by_git = compared(project, monkeypatch, "first", "second")
    assert compared(project, monkeypatch, "first", name) == by_git
    assert (
        compared(
            project,
            monkeypatch,
            "first",
            read_bundle(project / "data" / "tiny" / "track").digest[:8],
        )
        == by_git
    )
    assert compared(project, monkeypatch, "first", "workspace") == by_git


def test_the_tables_name_what_differs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = compare(project, monkeypatch, "first", "second", "--draws", "200").stdout
    assert "rl.learning_rate" in shown
    assert "Data and weights that differ: none" in shown
    assert "+0.167" in shown


def test_what_is_not_there_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unknown = compare(project, monkeypatch, "first", "nonsense")
    problem = "'nonsense' is no file and no git revision here, and no report at "
    assert problem in str(unknown.exception)
    clone = tmp_path / "clone"  # without DVC's cache
    command(tmp_path, "git", "clone", "-q", str(project), str(clone))
    missing = compare(clone, monkeypatch, "HEAD", "HEAD")
    assert "neither cache nor remote of DVC has the report of tiny at HEAD" in str(
        missing.exception
    )
    assert "dvc push" in str(missing.exception)


def test_where_nothing_was_tracked_names_are_looked_for_and_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "params.yaml").write_text("profile: tiny\n")
    for folder in ((), ("--store", f"sqlite:///{tmp_path / 'other' / 'mlflow.db'}")):
        unknown = compare(tmp_path, monkeypatch, "typo_one", "typo_two", *folder)
        problem = "'typo_one' is no file and no git revision here, and no report at "
        assert problem in str(unknown.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


def test_a_report_that_was_not_tracked_since_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The other tests count on the commits of the shared one
    project = shutil.copytree(project, tmp_path / "project")
    tracked = project / "data" / "tiny" / "track" / "files" / "f1_table.md"
    shown = project / "reports" / "tiny" / "f1_table.md"
    shown.parent.mkdir(parents=True)
    shown.write_bytes(tracked.read_bytes())
    commit_all(project, "the tracked report")
    for name in ("workspace", "HEAD"):
        assert compare(project, monkeypatch, "first", name).exit_code == 0

    shown.write_text("a newer table")
    commit_all(project, "a report alone")
    for name in ("workspace", "HEAD"):
        stale = compare(project, monkeypatch, "first", name)
        assert f"{name}: reports/tiny/f1_table.md is not the table of" in str(stale.exception)
        assert "dvc repro dvc.yaml:track" in str(stale.exception)
