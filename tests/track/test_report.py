import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.entities import Expectation, Feedback, Run, Trace
from mlflow.tracking import MlflowClient

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import read_json, write_json
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.track.contents import Results, TrackedReport, flatten, headline, row_scores
from deepsearch_rl.track.report import describe_report, log_report
from tests.track.conftest import (
    CONFIG,
    MODELS,
    QUESTIONS,
    SEED,
    make_results,
    new_store,
    traces_experiment,
)


def runs_of(store: str) -> dict[str, Run]:
    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name(CONFIG.experiment)
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    return {run.data.tags.get("model", "report"): client.get_run(run.info.run_id) for run in found}


def traces_of(store: str, run: Run) -> list[Trace]:
    client = MlflowClient(tracking_uri=store)
    locations = [run.info.experiment_id, traces_experiment(client)]
    return list(client.search_traces(locations=locations, run_id=run.info.run_id))


def table(store: str, run: Run, name: str, folder: Path) -> dict[str, tuple[object, ...]]:
    path = MlflowClient(tracking_uri=store).download_artifacts(run.info.run_id, name, str(folder))
    found = read_json(Path(path))
    return dict(zip(found["columns"], zip(*found["data"], strict=True), strict=True))


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, TrackedReport]:
    """A store in its folder, and the report that it was given."""
    folder = tmp_path_factory.mktemp("project")
    store = new_store(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DVC_EXP_NAME", "quick")
        return store, log_report(make_results(folder / "results"), CONFIG, SEED)


@pytest.mark.slow
def test_a_report_is_one_run_with_a_run_per_model_under_it(
    logged: tuple[str, TrackedReport],
) -> None:
    store, report = logged
    runs = runs_of(store)
    parent = runs.pop("report")
    assert set(runs) == set(MODELS) == set(report.models)
    assert parent.info.run_name == "tiny · quick"
    for model, run in runs.items():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.tags["profile"] == "tiny"
        assert run.info.run_name == f"tiny/{model} · quick"
        assert run.data.params == {"rl.learning_rate": "0.5", "seed": "0"}, "without the secret"
        assert run.info.status == "FINISHED"

    f1 = {model: run.data.metrics["f1/multihoprag"] for model, run in runs.items()}
    best = {"f1/multihoprag": max(f1.values())}
    assert parent.data.metrics == best | {f"{model}/f1": value for model, value in f1.items()}
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
    # IFEval, and two points of its curve
    assert report.metrics["sft"] == report.metrics["base"] + 1 + 2


@pytest.mark.slow
def test_tables_hold_the_whole_report_and_each_models_rows_and_predictions(
    logged: tuple[str, TrackedReport], tmp_path: Path
) -> None:
    store, report = logged
    runs = runs_of(store)
    parent = runs.pop("report")
    whole = table(store, parent, "f1_table.json", tmp_path)
    assert whole["model"] == tuple(model for model in MODELS for _ in range(2))
    assert whole["failures"] == ("no_answer_tag=2",) * 6
    assert table(store, runs["sft"], "f1_table.json", tmp_path)["temperature"] == (0.7, 0.0)
    predictions = {
        model: table(store, run, "predictions.json", tmp_path) for model, run in runs.items()
    }
    assert [len(rows["rollout"]) for rows in predictions.values()] == [2 * 5] * 3
    assert report.predictions == 3 * 2 * 5
    assert len({rows["rollout"] for rows in predictions.values()}) == 1, "the same questions"
    assert set(predictions["sft"]["golden_answers"]) == {"Port Vale | Vale"}
    # So that MLflow's page compares them
    assert "predictions.json" in runs["sft"].data.tags["mlflow.loggedArtifacts"]
    attached = MlflowClient(tracking_uri=store).list_artifacts(parent.info.run_id, "report")
    assert [Path(file.path).name for file in attached] == [
        "f1_table.csv",
        "f1_table.md",
        "index.html",
        "lost_points.json",
        "metrics.json",
    ]


@pytest.mark.slow
def test_a_reports_run_opens_with_a_link_to_its_page_and_the_f1_table(
    logged: tuple[str, TrackedReport],
) -> None:
    run = runs_of(logged[0])["report"]
    link, title, markdown, *_ = run.data.tags["mlflow.note.content"].split("\n\n")
    page = (
        f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts/report/index.html"
    )
    assert link == f"[The report: plots, tables and rollouts]({page})"
    assert title == "### F1, profile tiny (generated data)"
    assert "| multihoprag (12 x 1) | base |" in markdown


def test_a_description_that_would_be_too_long_ends_with_a_whole_paragraph() -> None:
    row = "| sft    | .5 |\n"
    description = describe_report(f"# F1\n\n{row * 100}\n{row * 1000}", "page")
    assert description.endswith("| sft | .5 |")
    assert description.count("| sft | .5 |") == 100


@pytest.mark.slow
def test_a_models_run_has_its_traces_with_searches_model_calls_and_tokens(
    logged: tuple[str, TrackedReport],
) -> None:
    store, report = logged
    traces = traces_of(store, runs_of(store)["sft"])
    # A quarter of twelve, of the sampled and of the greedy run
    assert len(traces) == 2 * 3
    assert report.traces == 3 * 2 * 3
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


@pytest.mark.slow
def test_logged_models_say_where_the_weights_are_and_what_they_scored_on_which_data(
    logged: tuple[str, TrackedReport],
) -> None:
    store, _ = logged
    run = runs_of(store)["sft"]
    client = MlflowClient(tracking_uri=store)
    (model,) = client.search_logged_models(
        [run.info.experiment_id], f"source_run_id = '{run.info.run_id}'"
    )
    assert run.inputs is not None
    assert [found.model_id for found in run.inputs.model_inputs] == [model.model_id]
    assert model.params == {"checkpoint": "models/tiny/sft", "sha256": "sft" * 8}
    assert model.tags["weights"] == "models/tiny/sft"
    measured = {
        metric.key: (metric.dataset_name, metric.dataset_digest) for metric in model.metrics or ()
    }
    assert measured["f1/multihoprag"] == ("multihoprag", "b" * 36)
    assert measured["ifeval/prompt_strict"] == (None, None)
    assert "train/loss" not in measured
    (asked,) = [found.dataset for found in run.inputs.dataset_inputs]
    assert (asked.name, asked.source) == ("multihoprag", "data/tiny/questions/multihoprag")


@pytest.mark.slow
def test_the_best_model_is_a_version_of_the_profiles_model_and_best_is_the_highest_f1(
    tmp_path: Path, store: str
) -> None:
    name = f"{CONFIG.experiment}-tiny"
    client = MlflowClient(tracking_uri=store)
    # A version that somebody registered by hand has no F1
    client.create_registered_model(name)
    client.create_model_version(name, str(tmp_path))
    best: list[int] = []
    for right in (8, 10, 9):
        log_report(make_results(tmp_path / str(right), right), CONFIG, SEED)
        best.append(int(client.get_model_version_by_alias(name, "best").version))
    assert best == [2, 3, 3]
    version = client.get_model_version(name, "3")
    assert version.tags["weights"] == "models/tiny/sft"
    assert "| sft" in version.description
    assert client.get_run(str(version.run_id)).data.tags["model"] == "sft"


@pytest.mark.slow
def test_alarms_of_a_models_training_are_tags_and_found_prompts_go_with_the_report(
    tmp_path: Path, store: str
) -> None:
    results = make_results(tmp_path / "results")
    alarms = [
        {"name": "spike", "step": 3, "reason": "grad_norm is 27.5, usually 0.5"},
        {"name": "spike", "step": 9, "reason": "grad_norm is 40, usually 0.5"},
    ]
    write_json(results.train_logs["sft"].with_name("manifest.json"), {"alarms": alarms})
    found = tmp_path / "prompts" / "candidates.json"
    write_json(found, [])
    # The best model is behind an endpoint
    log_report(replace(results, weights={}, attached=(found,)), CONFIG, SEED)

    runs = runs_of(store)
    assert runs["sft"].data.tags["alarm/spike"] == "from step 9: grad_norm is 40, usually 0.5"
    assert not [name for name in runs["base"].data.tags if name.startswith("alarm/")]
    client = MlflowClient(tracking_uri=store)
    (file,) = client.list_artifacts(runs["report"].info.run_id, "report/prompts")
    assert file.path == "report/prompts/candidates.json"
    assert client.search_registered_models() == []


@pytest.mark.parametrize("path", ["", "/mlflow"])
def test_a_server_that_is_away_is_one_error_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:hidden@127.0.0.1:9{path}")
    with pytest.raises(EndpointError) as caught:
        log_report(make_results(tmp_path / "results"), CONFIG, SEED)
    assert f"MLflow's server at http://127.0.0.1:9{path} does not take" in str(caught.value)
    assert "unset MLFLOW_TRACKING_URI" in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.slow
def test_a_deleted_experiment_is_named_and_stays_deleted(tmp_path: Path, store: str) -> None:
    client = MlflowClient(tracking_uri=store)
    client.delete_experiment(client.create_experiment(CONFIG.experiment))
    with pytest.raises(EndpointError, match=r"deleted experiment 'tests'.*restore"):
        log_report(make_results(tmp_path / "results"), CONFIG, SEED)


@pytest.mark.nightly
def test_two_processes_may_make_the_store_at_once(tmp_path: Path) -> None:
    code = "from deepsearch_rl.track.store import mlflow_client\nwith mlflow_client(60) as c: c.create_experiment('{}')"
    environment = {name: value for name, value in os.environ.items() if "MLFLOW" not in name}
    children = [
        subprocess.Popen([sys.executable, "-c", code.format(name)], cwd=tmp_path, env=environment)
        for name in ("a", "b")
    ]
    assert [child.wait() for child in children] == [0, 0]
    found = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").search_experiments()
    assert {experiment.name for experiment in found} == {"Default", "a", "b"}


def test_every_model_shows_the_same_rollouts_and_more_of_them_keep_those(tmp_path: Path) -> None:
    results = make_results(tmp_path)

    def shown(model: str, share: float) -> set[str]:
        return {rollout.trajectory.id for rollout in results.sample(model, SEED, share)}

    assert shown("base", 0.1) == shown("sft", 0.1) == shown("rl", 0.1)
    assert shown("sft", 0.1) < shown("sft", 0.5)
    # Rounded up, and at least one of them
    assert [len(shown("sft", share)) for share in (0.0, 0.1, 0.5)] == [0, 2, 6]


def test_failed_rollouts_are_predictions_that_score_zero(tmp_path: Path) -> None:
    rows = [rollout.prediction for rollout in make_results(tmp_path).sample("sft", SEED)]
    assert len(rows) == 2 * QUESTIONS
    failed = [row for row in rows if row["stop_reason"] != "answered"]
    assert [(row["rollout"], row["f1"], row["answer"]) for row in failed[:2]] == [
        ("q05#0", 0.0, ""),
        ("q11#0", 0.0, ""),
    ]


def test_variants_and_greedy_answers_have_names_of_their_own(tmp_path: Path) -> None:
    main, greedy = (row for row in make_results(tmp_path).table.rows if row.model == "sft")
    variant = main.model_copy(update={"variant": "top 5, short"})
    names = [name for row in (main, greedy, variant) for name in row_scores(row)]
    assert {"f1/multihoprag", "f1_greedy/multihoprag", "f1/multihoprag.top_5__short"} <= set(names)
    assert len(set(names)) == len(names)


def test_the_reports_own_figures_are_the_best_models_on_every_set(tmp_path: Path) -> None:
    table = make_results(tmp_path).table
    others = [
        row.model_copy(update={"dataset": "2wikimultihopqa", "f1": 0.75}) for row in table.rows
    ]
    both = table.model_copy(update={"rows": (*others, *table.rows)})
    assert {name: round(value, 3) for name, value in headline(both).items()} == {
        "f1/multihoprag": 0.583,
        "f1/2wikimultihopqa": 0.75,
        "base/f1": 0.25,
        "rl/f1": 0.417,
        "sft/f1": 0.583,
    }


def test_lost_points_of_the_in_domain_set_and_f1_add_up_to_one(tmp_path: Path) -> None:
    results: Results = make_results(tmp_path)
    for row in results.table.main_rows("multihoprag"):
        figures = results.figures(row.model)
        assert sum(figures[f"lost/{cause}"] for cause in Cause) == pytest.approx(1 - row.f1)
        assert figures["lost/not_used"] > 0


def test_params_are_flattened_in_order_without_secrets() -> None:
    params = {
        "b": [1, 2],
        "a": {"d": None, "c": True},
        "endpoint": {"OPENAI_API_KEY": "sk-hidden"},
        "max_tokens": 96,
        "plain": "https://user:hid%2Fden@api.example:8000/v1",
        "servers": [{"url": "http://user:hidden@h/v1", "api_key": "sk-hidden"}, "http://h/v1"],
    }
    assert list(flatten(params)) == [
        ("a.c", "True"),
        ("a.d", "None"),
        ("b", "[1, 2]"),
        ("max_tokens", "96"),
        ("plain", "https://***@api.example:8000/v1"),
        ("servers", "[{'url': 'http://***@h/v1'}, 'http://h/v1']"),
    ]
