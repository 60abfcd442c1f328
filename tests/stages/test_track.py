"""The stage `track` and the command `deepsearch track`, in a project with a finished report."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from mlflow.tracking import MlflowClient
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.files import read_jsonl, read_record
from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.track.bundle import TrackedReport, read_bundle
from deepsearch_rl.track.local_store import local_store
from deepsearch_rl.train.curves import TrainingStep, curve_path, record_step, recorded_curve
from flows.repro import repro
from stages import track
from stages.provenance import read_provenance
from tests.repository import git
from tests.track.conftest import CONFIG, make_results, new_store

NOBODY = "http://user:hidden@127.0.0.1:9"


def lock_entry(model: str) -> dict[str, object]:
    weights = {"path": f"models/tiny/{model}", "md5": f"{model}.dir"}
    return {
        "deps": [{"path": "data/tiny/questions", "md5": "1.dir"}, weights],
        "params": {"params.yaml": {"seed": 0}},
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A project whose tiny profile has been evaluated and reported, as its working directory."""
    made = make_results(tmp_path / "results")
    (tmp_path / "data").mkdir()
    (tmp_path / "reports").mkdir()
    made.reports.rename(tmp_path / "reports" / "tiny")
    (tmp_path / "results").rename(tmp_path / "data" / "tiny")
    trained = {"models": "data/tiny", "filter": "f", "ifeval": "i"}
    params = {"profile": "tiny", "seed": 0, "track": CONFIG.model_dump(), "trained": trained}
    params["evaluate"] = {"variants": {}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    out = {"path": "data/tiny/questions", "md5": "2" * 32 + ".dir"}
    models = {"models": {name: f"models/tiny/{name}" for name in ("base", "sft")}}
    report = {"params": {"params.yaml": models}}
    stages = {
        "download": {"outs": [out]},
        "report": report,
        **{f"evaluate@{name}": lock_entry(name) for name in ("base", "sft")},
    }
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"stages": stages}))
    monkeypatch.chdir(tmp_path)
    return load_profile(Path("params.yaml"))


def deepsearch(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["track", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_server_that_is_away_fails_no_stage_and_the_report_waits(
    project: Profile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOBODY)
    with caplog.at_level(logging.WARNING):
        track.main(project)
    tracked = read_record(Path("reports/tiny/track.json"), TrackedReport)
    assert read_bundle(Path("work/tiny/outbox", tracked.digest)).digest == tracked.digest
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "stages.track"]
    assert "NOT SENT to MLflow: no MLflow server answers at http://127.0.0.1:9" in warning
    assert "`deepsearch track tiny`" in warning
    assert "hidden" not in caplog.text


def test_runs_name_the_stages_and_weights_that_they_come_from(
    project: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOBODY)
    track.main(project)
    bundle = read_bundle(Path("data/tiny/track"))
    assert bundle.tags["dvc.stage"] == "report"
    assert bundle.models["sft"].tags == {
        "dvc.stage": "evaluate@sft",
        "dvc.weights": "models/tiny/sft",
        "dvc.weights.md5": "sft.dir",
        "trained_with_other": "unknown",
    }
    assert bundle.models["rl"].tags == {"trained_with_other": "unknown"}  # not in dvc.lock
    assert bundle.datasets["questions"].digest == "2" * 32 + ".dir"
    assert [metric.key for metric in bundle.metrics("sft")][-2:] == ["train/loss"] * 2


def test_settings_are_those_that_the_figures_were_made_with_wherever_dvc_wrote_them(
    project: Profile,
) -> None:
    def ran(**sections: object) -> dict[str, object]:
        return {"params": {"params.yaml": sections}}

    stages = {
        "report": ran(models={"sft": "m"}, evaluate="of the report"),
        "evaluate@sft": ran(agent="new", evaluate="of the model"),
        "evaluate@gone": ran(agent="of a model that is no longer evaluated", retrieval="r"),
        "rl@base": ran(agent="old", rl="r"),
    }
    for order in (list(stages), list(reversed(stages))):
        Path("dvc.lock").write_text(
            yaml.safe_dump({"stages": {name: stages[name] for name in order}}, sort_keys=False)
        )
        found = read_provenance(project.path, "track").params
        assert (found["agent"], found["evaluate"], found["rl"]) == ("new", "of the report", "r")


@pytest.mark.parametrize(
    "files", [("params.yaml", "packages.json"), ("packages.json", "params.yaml")]
)
def test_versions_of_packages_are_no_settings(project: Profile, files: tuple[str, ...]) -> None:
    values: dict[str, object] = {
        "params.yaml": {"seed": 0, "sft": {"epochs": 2}},
        "packages.json": {"sft": {"core": {"torch": "2.11.0"}}},
    }
    # DVC writes the files of a stage in the order of their paths, not of the stage
    entry = {"params": {file: values[file] for file in files}}
    Path("dvc.lock").write_text(yaml.safe_dump({"stages": {"sft": entry}}, sort_keys=False))
    provenance = read_provenance(project.path, "track")
    assert provenance.params == values["params.yaml"]


def test_a_running_experiment_is_named(project: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_EXP_NAME", "quick")
    assert read_provenance(project.path, "track").tags["dvc.experiment"] == "quick"


def test_the_defaults_are_the_committed_params_of_the_default_profile(project: Profile) -> None:
    Path("dvc.lock").write_text("stages: {}\n")
    assert read_provenance(project.path, "track").defaults == {}, "outside git there are none"
    Path("params.yaml").write_text("rl: {group_size: 8}\n")
    for command in (["init", "-q"], ["add", "params.yaml"], ["commit", "-q", "-m", "first"]):
        git(Path(), *command)
    ran = {"stages": {"rl@sft": {"params": {"params.yaml": {"rl": {"group_size": 16}}}}}}
    Path("dvc.lock").write_text(yaml.safe_dump(ran))
    provenance = read_provenance(project.path, "track")
    assert provenance.defaults == {"rl": {"group_size": 8}}
    assert provenance.tags["changes"] == "rl.group_size=16"


@pytest.mark.slow
def test_the_command_sends_what_waits_once_and_to_any_store(
    project: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOBODY)
    track.main(project)
    name = read_bundle(Path("data/tiny/track")).name
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    new_store(Path("mlruns"))
    assert deepsearch() == f"{name}: sent to {Path('mlruns/mlflow.db').resolve()}\n"
    assert list(Path("work/tiny/outbox").iterdir()) == []
    assert deepsearch("tiny").startswith(f"{name}: already at ")
    other = new_store(Path("other"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other)
    assert deepsearch().startswith(f"{name}: sent to ")
    assert MlflowClient(tracking_uri=other).get_experiment_by_name(CONFIG.experiment) is not None


@pytest.mark.slow
def test_a_malformed_bundle_that_waits_is_named_and_the_new_report_is_sent_and_not_kept(
    project: Profile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    new_store(Path("mlruns"))
    old = Path("work/tiny/outbox/old")
    old.mkdir(parents=True)
    (old / "bundle.json").write_text("{}")
    with caplog.at_level(logging.WARNING):
        track.main(project)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "stages.track"]
    assert f"The report waits in {old}:" in warning
    assert list(old.parent.iterdir()) == [old]
    again = CliRunner().invoke(app, ["track"])
    name = read_bundle(Path("data/tiny/track")).name
    assert again.stdout.startswith(f"{name}: already at ")
    assert str(again.exception).startswith(f"{old} was not sent: ")


@pytest.mark.slow
def test_a_report_whose_bundle_was_replaced_is_sent_from_where_it_waits(
    project: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOBODY)
    track.main(project)
    Path("data/tiny/track").rename("elsewhere")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", new_store(Path("mlruns")))
    assert deepsearch().count(": sent to ") == 1


def test_a_profile_that_does_not_exist_and_one_without_a_report_are_named(project: Profile) -> None:
    assert project.name == "tiny"
    unknown = CliRunner().invoke(app, ["track", "tinny"])
    assert "unknown profile 'tinny'" in str(unknown.exception)
    missing = CliRunner().invoke(app, ["track"])
    assert str(Path("data/tiny/track/bundle.json")) in str(missing.exception)


@pytest.mark.slow
def test_a_curve_that_was_watched_is_named_by_the_report_and_sent_once(
    project: Profile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOBODY)
    with recorded_curve(curve_path(project.work, "sft-0123")):
        for line in read_jsonl(Path("data/tiny/sft_adapter/train_log.jsonl"), TrainingStep):
            record_step(line.model_dump())
    with caplog.at_level(logging.WARNING):
        track.main(project)
    live, report = caplog.messages
    assert "LIVE FIGURES WAIT" in live
    assert "NOT SENT" in report
    assert "hidden" not in live + report
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    store = new_store(Path("mlruns"))
    for _ in range(2):
        track.main(project)
    client = MlflowClient(tracking_uri=store)
    live_id, report_id = (
        experiment.experiment_id
        for name in (f"{CONFIG.experiment}-live", CONFIG.experiment)
        if (experiment := client.get_experiment_by_name(name))
    )
    (watched,) = client.search_runs([live_id])
    (run,) = client.search_runs([report_id], "tags.model = 'sft'")
    assert (run.data.tags["live.run"], watched.data.tags["report.run"]) == (
        watched.info.run_id,
        run.info.run_id,
    )
    assert watched.info.status == "FINISHED"
    reported, shown_live = (
        [
            (point.step, point.value, point.timestamp)
            for point in client.get_metric_history(id_, "train/loss")
        ]
        for id_ in (run.info.run_id, watched.info.run_id)
    )
    assert reported == shown_live
    assert len(reported) == 2


@pytest.fixture
def dvc_project(project: Profile, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same project in git and DVC: the stage `track` after one that stands for all others."""
    for name, value in {"NAME": "a", "EMAIL": "a@b.c"}.items():
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root / "src"), str(root)]))
    folder = project.path.resolve().parent
    values = {**project.values, "flow": {"gpu_stages": [], "outside_stages": []}}
    Path("params.yaml").write_text(yaml.safe_dump(values))
    Path("dvc.lock").unlink()
    command = f"{sys.executable} -m stages.track params.yaml"
    stages = {
        "report": {
            "cmd": "cat params.yaml > reported",
            "deps": ["reports/tiny"],
            "params": ["seed"],
            "outs": ["reported"],
        },
        "track": {"cmd": command, "deps": ["reported"], "outs": ["data/tiny/track", "track.json"]},
    }
    stages["track"]["cmd"] = f"{command} && mv reports/tiny/track.json track.json"
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    Path(".gitignore").write_text(
        "/work/\n/mlruns/\n/elsewhere/\n/reported\n/track.json\n/data/tiny/track\n"
    )
    subprocess.run(["git", "init", "--quiet"], check=True)
    dvc("init", "--quiet")
    for arguments in (["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", *arguments], check=True)
    return folder


def dvc(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dvc", *arguments], check=True, capture_output=True)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_the_report_of_an_experiment_whose_folder_is_gone_waits_in_the_project(
    dvc_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOBODY)
    dvc("exp", "run", "--temp", "-S", "seed=1")
    dvc("exp", "run", "--queue", "-S", "seed=2")
    dvc("exp", "run", "--run-all")
    assert list(dvc_project.glob(".dvc/tmp/exps/tmp*")) == []
    waiting = list((dvc_project / "work/tiny/outbox").iterdir())
    assert len(waiting) == 2
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert deepsearch().count(": sent to ") == 2


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_report_whose_stage_dvc_restores_reaches_the_store_all_the_same_and_once(
    dvc_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reports(store: str) -> int:
        client = MlflowClient(tracking_uri=store)
        experiment = client.get_experiment_by_name(CONFIG.experiment)
        assert experiment
        runs = client.search_runs([experiment.experiment_id])
        return sum("mlflow.parentRunId" not in run.data.tags for run in runs)

    assert repro("tiny") == {"report": "Completed", "track": "Completed"}
    store = local_store(dvc_project / "mlruns")
    assert reports(store) == 1

    shutil.rmtree("mlruns")
    shutil.rmtree("data/tiny/track")
    assert repro("tiny") == {"report": "Cached", "track": "Restored"}
    assert reports(store) == 1
    assert repro("tiny") == {"report": "Cached", "track": "Cached"}
    assert reports(store) == 1

    elsewhere = new_store(dvc_project / "elsewhere")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", elsewhere)
    assert set(repro("tiny").values()) == {"Cached"}
    assert reports(elsewhere) == 1
