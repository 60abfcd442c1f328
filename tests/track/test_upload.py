import multiprocessing
import re
import shutil
from pathlib import Path

import pytest
from mlflow.entities import Expectation, Feedback, Run, Trace
from mlflow.tracking import MlflowClient

from deepsearch_rl.core.files import read_json, write_json
from deepsearch_rl.track.build_bundle import build_bundle
from deepsearch_rl.track.bundle import TrackedReport
from deepsearch_rl.track.local_store import database_file, has_report, local_store
from deepsearch_rl.track.upload import describe_report, upload
from tests.track.conftest import (
    CONFIG,
    MODELS,
    PROVENANCE,
    SEED,
    make_results,
    new_store,
    traces_experiment,
)

TIMEOUT_S = 5.0

# Every test fills a real SQLite store, which takes seconds
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return new_store(tmp_path_factory.mktemp("mlruns"))


def built(folder: Path, right: int) -> tuple[Path, TrackedReport]:
    bundle = folder / "bundle"
    return bundle, build_bundle(
        make_results(folder / "results", right), PROVENANCE, CONFIG, SEED, bundle
    )


def experiment_of(client: MlflowClient) -> str:
    experiment = client.get_experiment_by_name(CONFIG.experiment)
    assert experiment is not None
    return experiment.experiment_id


def runs_of(store: str, report: TrackedReport) -> dict[str, Run]:
    client = MlflowClient(tracking_uri=store)
    found = client.search_runs([experiment_of(client)], f"tags.`report.digest` = '{report.digest}'")
    return {run.data.tags.get("model", "report"): client.get_run(run.info.run_id) for run in found}


def traces_of(store: str, run: Run) -> list[Trace]:
    client = MlflowClient(tracking_uri=store)
    locations = [run.info.experiment_id, traces_experiment(client)]
    found = list(client.search_traces(locations=locations, run_id=run.info.run_id))
    assert {trace.info.experiment_id for trace in found} <= {traces_experiment(client)}
    return found


def table(store: str, run: Run, name: str, folder: Path) -> dict[str, tuple[object, ...]]:
    path = MlflowClient(tracking_uri=store).download_artifacts(run.info.run_id, name, str(folder))
    found = read_json(Path(path))
    return dict(zip(found["columns"], zip(*found["data"], strict=True), strict=True))


@pytest.fixture(scope="module")
def report(store: str, tmp_path_factory: pytest.TempPathFactory) -> TrackedReport:
    """A report that was sent to the store."""
    bundle, report = built(tmp_path_factory.mktemp("report"), 8)
    assert upload(bundle, store, TIMEOUT_S)
    return report


def test_a_report_is_one_run_with_a_run_per_model_under_it(
    store: str, report: TrackedReport
) -> None:
    runs = runs_of(store, report)
    parent = runs.pop("report")
    assert set(runs) == set(MODELS)
    for run in runs.values():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.tags["git.commit"] == "abc"
        assert run.data.tags["profile"] == "tiny"
        assert run.data.params == {"rl.learning_rate": "0.5"}, (
            "the default profile has another one, and the same seed"
        )
        assert run.info.status == "FINISHED"
    assert parent.data.tags["dvc.stage"] == "report"
    f1 = {model: run.data.metrics["f1/multihoprag"] for model, run in runs.items()}
    best = {"f1/multihoprag": max(f1.values())}
    assert parent.data.metrics == best | {f"{model}/f1": value for model, value in f1.items()}
    assert runs["sft"].data.tags["dvc.stage"] == "evaluate@sft"
    metrics = runs["sft"].data.metrics
    # The eighth answer belongs to a rollout that failed
    assert metrics["f1/multihoprag"] == pytest.approx(7 / 12)
    assert metrics["f1_greedy/multihoprag"] == pytest.approx(7 / 12)
    assert metrics["pass_at_1/multihoprag"] == metrics["em/multihoprag"]
    assert metrics["failed/multihoprag"] == 2
    assert metrics["ifeval/prompt_strict"] == 0.5
    curve = MlflowClient(tracking_uri=store).get_metric_history(
        runs["sft"].info.run_id, "train/loss"
    )
    assert [(point.step, point.value) for point in curve] == [(1, 2.0), (2, 1.0)]


def test_an_alarm_of_a_models_training_is_a_tag_of_its_run_with_step_and_reason(
    tmp_path: Path,
) -> None:
    store = new_store(tmp_path / "mlruns")
    results = make_results(tmp_path / "results")
    alarms = [
        {"name": "spike", "step": 3, "reason": "grad_norm is 27.5, usually 0.5"},
        {"name": "no_signal", "step": 4, "reason": "90% of the groups have equal rewards"},
        {"name": "spike", "step": 9, "reason": "grad_norm is 40, usually 0.5"},
    ]
    write_json(results.train_logs["sft"].parent / "manifest.json", {"steps": 9, "alarms": alarms})
    bundle = tmp_path / "bundle"
    report = build_bundle(results, PROVENANCE, CONFIG, SEED, bundle)
    assert upload(bundle, store, TIMEOUT_S)

    runs = runs_of(store, report)
    assert runs["sft"].data.tags["alarm/spike"] == "from step 9: grad_norm is 40, usually 0.5"
    assert runs["sft"].data.tags["alarm/no_signal"].startswith("from step 4: 90% of the groups")
    assert not [name for name in runs["base"].data.tags if name.startswith("alarm/")]


def test_runs_are_named_by_what_differs_and_a_second_report_of_the_same_settings_by_its_time(
    tmp_path: Path,
) -> None:
    store = new_store(tmp_path / "mlruns")
    names: list[list[str]] = []
    for right in (8, 9):
        bundle, report = built(tmp_path / str(right), right)
        upload(bundle, store, TIMEOUT_S)
        names.append(sorted(str(run.info.run_name) for run in runs_of(store, report).values()))
    first, second = names
    settings = "rl.learning_rate=0.5 · quick · abc"
    assert first == [f"tiny · {settings}", *(f"tiny/{model} · {settings}" for model in MODELS)]
    for name, again in zip(first, second, strict=True):
        assert re.fullmatch(rf"{re.escape(name)} · \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC", again)


def test_tables_hold_the_whole_report_and_each_models_rows_and_predictions(
    store: str, report: TrackedReport, tmp_path: Path
) -> None:
    runs = runs_of(store, report)
    parent = runs.pop("report")
    whole = table(store, parent, "f1_table.json", tmp_path)
    assert whole["model"] == tuple(model for model in MODELS for _ in range(2))
    assert whole["failures"] == ("no_answer_tag=2",) * 6
    assert table(store, runs["sft"], "f1_table.json", tmp_path)["temperature"] == (0.7, 0.0)
    predictions = {
        model: table(store, run, "predictions.json", tmp_path) for model, run in runs.items()
    }
    assert [len(rows["rollout"]) for rows in predictions.values()] == [2 * 5] * 3
    # The same questions, to be compared
    assert len({rows["rollout"] for rows in predictions.values()}) == 1
    assert set(predictions["sft"]["golden_answers"]) == {"Port Vale | Vale"}
    # So that the UI compares it
    assert "predictions.json" in runs["sft"].data.tags["mlflow.loggedArtifacts"]
    attached = MlflowClient(tracking_uri=store).list_artifacts(parent.info.run_id, "report")
    names = [
        "bundle.json",
        "f1_table.csv",
        "f1_table.md",
        "index.html",
        "lost_points.json",
        "metrics.json",
        "params.json",
    ]
    assert [file.path for file in attached] == [
        f"report/{name}" for name in [*names, "question_f1.json"]
    ]
    params = MlflowClient(tracking_uri=store).download_artifacts(
        parent.info.run_id, "report/params.json", str(tmp_path)
    )
    assert read_json(Path(params)) == {"rl.learning_rate": "0.5", "seed": "0"}, (
        "all of them, without the secret"
    )


def test_a_reports_run_opens_with_a_link_to_its_page_and_the_f1_table(
    store: str, report: TrackedReport
) -> None:
    run = runs_of(store, report)["report"]
    link, title, table, *_ = run.data.tags["mlflow.note.content"].split("\n\n")
    page = (
        f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts/report/index.html"
    )
    assert link == f"[The report: plots, tables and rollouts]({page})"
    assert title == "### F1, profile tiny (generated data)"
    assert "| multihoprag (12 x 1) | base |" in table


def test_a_description_that_would_be_too_long_ends_with_a_whole_paragraph() -> None:
    row = "| sft    | .5 |\n"
    description = describe_report(f"# F1\n\n{row * 100}\n{row * 1000}", "page")
    assert description.endswith("| sft | .5 |")
    assert description.count("| sft | .5 |") == 100


def test_a_models_run_has_its_traces_with_searches_model_calls_and_tokens(
    store: str, report: TrackedReport
) -> None:
    traces = traces_of(store, runs_of(store, report)["sft"])
    # A quarter of twelve, of the sampled and of the greedy run
    assert len(traces) == 2 * 3
    for trace in traces:
        root, *steps = trace.data.spans
        assert [(span.span_type, span.parent_id) for span in steps] == [
            ("CHAT_MODEL", root.span_id),
            ("RETRIEVER", root.span_id),
            ("CHAT_MODEL", root.span_id),
        ]
        assert root.span_type == "AGENT"
        assert trace.info.token_usage == {
            "input_tokens": 110,
            "output_tokens": 15,
            "total_tokens": 125,
        }
        said = {found.name: found for found in trace.info.assessments}
        assert isinstance(said["f1"], Feedback)
        assert said["f1"].value == root.attributes["f1"]
        assert isinstance(said["expected_response"], Expectation)
        assert said["expected_response"].value == "Port Vale | Vale"


def test_logged_models_say_where_the_weights_are_and_what_they_scored_on_which_data(
    store: str, report: TrackedReport
) -> None:
    run = runs_of(store, report)["sft"]
    client = MlflowClient(tracking_uri=store)
    (model,) = client.search_logged_models(
        [run.info.experiment_id], f"source_run_id = '{run.info.run_id}'"
    )
    assert run.inputs is not None
    assert [found.model_id for found in run.inputs.model_inputs] == [model.model_id]
    assert model.params == {"checkpoint": "models/tiny/sft", "sha256": "sft" * 8}
    assert (model.tags["dvc.weights"], model.tags["dvc.weights.md5"]) == (
        "models/tiny/sft",
        "77.dir",
    )
    assert client.list_logged_model_artifacts(model.model_id) == []
    measured = {
        metric.key: (metric.dataset_name, metric.dataset_digest) for metric in model.metrics or ()
    }
    assert measured["f1/multihoprag"] == ("multihoprag", "b" * 36)
    assert measured["ifeval/prompt_strict"] == (None, None)
    assert "train/loss" not in measured
    datasets = {found.dataset.name: found.dataset for found in run.inputs.dataset_inputs}
    assert datasets["multihoprag"].source == "data/tiny/questions/multihoprag/val.jsonl"
    assert datasets["questions"].digest == PROVENANCE.datasets["questions"].digest


def test_the_best_model_is_a_version_of_the_profiles_model_and_best_is_the_highest_f1(
    tmp_path: Path,
) -> None:
    store, name = new_store(tmp_path / "mlruns"), f"{CONFIG.experiment}-tiny"
    client = MlflowClient(tracking_uri=store)
    best = []
    for right in (8, 10, 9):
        upload(built(tmp_path / str(right), right)[0], store, TIMEOUT_S)
        best.append(int(client.get_model_version_by_alias(name, "best").version))
    assert best == [1, 2, 2]
    version = client.get_model_version(name, "2")
    assert version.tags["dvc.weights"] == "models/tiny/sft"
    assert version.tags["data.questions"] == PROVENANCE.datasets["questions"].digest
    assert "| sft" in version.description
    assert client.get_run(str(version.run_id)).data.tags["model"] == "sft"


def test_sending_a_report_again_adds_nothing_wherever_it_comes_from(
    store: str, report: TrackedReport, tmp_path: Path
) -> None:
    elsewhere = PROVENANCE.model_copy(update={"tags": {"git.commit": "def"}})
    again = build_bundle(
        make_results(tmp_path / "there", 8), elsewhere, CONFIG, SEED, tmp_path / "elsewhere"
    )
    assert again.digest == report.digest
    assert not upload(tmp_path / "elsewhere", store, TIMEOUT_S)
    assert len(runs_of(store, report)) == 4


def test_what_a_kill_left_half_sent_is_replaced_with_its_traces_and_models(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_at_the_end(
        self: MlflowClient, run_id: str, path: str, artifact_path: str | None = None
    ) -> None:
        if artifact_path == "report":  # the last thing that is sent
            raise KeyboardInterrupt
        log_artifact(self, run_id, path, artifact_path)

    bundle, report = built(tmp_path, 6)
    log_artifact = MlflowClient.log_artifact
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifact", killed_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            upload(bundle, store, TIMEOUT_S)
    database = database_file(store)
    assert database is not None
    assert not has_report(database.with_name("none.db"), report.digest)
    assert not has_report(database, report.digest), "half of it does not count"
    half = runs_of(store, report)
    assert traces_of(store, half["sft"])
    assert upload(bundle, store, TIMEOUT_S)
    assert has_report(database, report.digest)
    runs = runs_of(store, report)
    assert len(runs) == 4
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {run.info.run_id for run in runs.values()}.isdisjoint(
        run.info.run_id for run in half.values()
    )
    assert traces_of(store, half["sft"]) == []
    client = MlflowClient(tracking_uri=store)
    versions = client.search_model_versions(f"name = '{CONFIG.experiment}-tiny'")
    assert [version.run_id for version in versions].count(half["sft"].info.run_id) == 0
    assert [version.run_id for version in versions].count(runs["sft"].info.run_id) == 1
    sources = {
        model.source_run_id
        for model in client.search_logged_models([experiment_of(client)], max_results=100)
    }
    assert sources.isdisjoint(run.info.run_id for run in half.values())


@pytest.mark.nightly
def test_two_processes_may_make_the_store_and_send_the_same_report_at_once(tmp_path: Path) -> None:
    bundle, report = built(tmp_path, 5)
    store = local_store(tmp_path / "mlruns")
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        # One waits for the other, which makes the store
        sent = pool.starmap(upload, [(bundle, store, 60.0)] * 2)
    assert sorted(sent) == [False, True]
    assert len(runs_of(store, report)) == 4


def test_a_copied_store_leaves_the_first_one_alone(tmp_path: Path) -> None:
    first, copy = tmp_path / "first", tmp_path / "a copy"
    for name in ("8", "5"):
        (tmp_path / name).mkdir()
    old, report = built(tmp_path / "8", 8)
    upload(old, new_store(first), TIMEOUT_S)
    shutil.copytree(first, copy)
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    new, _ = built(tmp_path / "5", 5)
    store = local_store(copy)
    assert upload(new, store, TIMEOUT_S)
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    shutil.rmtree(first)
    for run in runs_of(store, report).values():
        assert table(store, run, "f1_table.json", tmp_path)["model"]
        for trace in traces_of(store, run):
            assert MlflowClient(tracking_uri=store).get_trace(trace.info.trace_id).data.spans
