import dataclasses
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from deepsearch_rl.errors import EndpointError, RecordError
from deepsearch_rl.evaluation.rows import ConstantScore, F1TableRow
from deepsearch_rl.evaluation.tables import F1Table
from deepsearch_rl.files import parse_record, read_json
from deepsearch_rl.tracking import (
    CurvePoint,
    FinishedReport,
    Provenance,
    TrackConfig,
    TrackedReport,
    flatten,
    local_store,
    track,
)

CONFIG = TrackConfig(experiment="tests")
PROVENANCE = Provenance(
    tags={"dvc.stage": "track", "dvc.lock": "0123", "git.commit": "abc"},
    params={"seed": 0, "rl": {"learning_rate": 0.001, "api_key": "sk-hidden"}},
    datasets={"questions": ("data/tiny/questions", "d41d8cd98f00b204e9800998ecf8427e.dir")},
)

pytestmark = pytest.mark.slow  # every test works on a real SQLite store, which takes seconds to make


def row(model: str, f1: float, temperature: float = 0.7) -> F1TableRow:
    return F1TableRow(
        model=model,
        checkpoint=f"models/tiny/{model}",
        dataset="multihoprag",
        corpus="world",
        prompt="tiny",
        top_k=3,
        chunk_size=200,
        temperature=temperature,
        samples=3 if temperature else 1,
        seed=0,
        n=400,
        em=f1,
        f1=f1,
        f1_low=f1 - 0.02,
        f1_high=f1 + 0.02,
        acc=f1,
        precision=f1,
        recall=f1,
        mean_rounds=2.5,
        mean_tool_calls=1.5,
        failures={"deadline": 2, "turn_budget": 1},
        generated=True,
        constant=ConstantScore(answer="no", f1=0.1, em=0.1),
        types={},
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return local_store(tmp_path_factory.mktemp("mlruns"))


def report(tmp_path: Path, f1: float) -> FinishedReport:
    rows = (row("base", 0.2), row("sft", f1), row("sft", f1 + 0.1, temperature=0.0))
    table = F1Table(profile="tiny", generated=True, rows=rows, comparisons=())
    attached = tmp_path / "f1_table.md"
    attached.write_text("| model |\n")
    curve = [CurvePoint.model_validate({"step": step, "loss": 2.0 / step, "kl": None}) for step in (1, 2)]
    return FinishedReport(table, {"prompt_strict": {"sft": 0.5}}, {"sft": curve}, [attached])


def runs_of(store: str, tracked: TrackedReport) -> dict[str, Run]:
    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], f"tags.`report.digest` = '{tracked.digest}'")
    return {str(run.info.run_name): run for run in found}


def test_a_report_is_one_run_with_a_run_per_model_under_it(store: str, tmp_path: Path) -> None:
    tracked = track(report(tmp_path, 0.6), PROVENANCE, store, CONFIG)
    runs = runs_of(store, tracked)
    parent = runs.pop(f"tiny {tracked.digest[:12]}")
    assert set(runs) == {"base", "sft"}
    for run in runs.values():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.tags["git.commit"] == "abc"
        assert run.data.tags["profile"] == "tiny"
        assert run.data.params == {"seed": "0", "rl.learning_rate": "0.001"}
        (dataset,) = run.inputs.dataset_inputs
        assert dataset.dataset.digest == PROVENANCE.datasets["questions"][1]
    metrics = runs["sft"].data.metrics
    assert metrics["f1/multihoprag"] == 0.6
    assert metrics["f1_greedy/multihoprag"] == 0.7
    assert metrics["failed/multihoprag"] == 3
    assert metrics["ifeval/prompt_strict"] == 0.5
    curve = MlflowClient(tracking_uri=store).get_metric_history(runs["sft"].info.run_id, "train/loss")
    assert [(point.step, point.value) for point in curve] == [(1, 2.0), (2, 1.0)]


def test_the_f1_table_is_a_table_artifact_beside_the_attached_files(store: str, tmp_path: Path) -> None:
    tracked = track(report(tmp_path, 0.61), PROVENANCE, store, CONFIG)
    parent = runs_of(store, tracked)[f"tiny {tracked.digest[:12]}"]
    client = MlflowClient(tracking_uri=store)
    table = read_json(Path(client.download_artifacts(parent.info.run_id, "f1_table.json", str(tmp_path))))
    columns = dict(zip(table["columns"], zip(*table["data"], strict=True), strict=True))
    assert columns["model"] == ("base", "sft", "sft")
    assert columns["failures"] == ("deadline=2;turn_budget=1",) * 3
    assert "f1_table.json" in parent.data.tags["mlflow.loggedArtifacts"]  # so that the UI shows it as a table
    assert [file.path for file in client.list_artifacts(parent.info.run_id, "report")] == ["report/f1_table.md"]


def test_sending_a_report_twice_adds_nothing_wherever_it_comes_from(store: str, tmp_path: Path) -> None:
    first = track(report(tmp_path, 0.62), PROVENANCE, store, CONFIG)
    elsewhere = dataclasses.replace(PROVENANCE, tags={"git.commit": "def"})
    assert track(report(tmp_path, 0.62), elsewhere, store, CONFIG) == first
    assert len(runs_of(store, first)) == 3
    assert track(report(tmp_path, 0.63), PROVENANCE, store, CONFIG).digest != first.digest


def test_runs_that_a_kill_left_unfinished_are_replaced(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_table", killed)
        with pytest.raises(KeyboardInterrupt):
            track(report(tmp_path, 0.64), PROVENANCE, store, CONFIG)
    tracked = track(report(tmp_path, 0.64), PROVENANCE, store, CONFIG)
    runs = runs_of(store, tracked)
    assert len(runs) == 3
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


@pytest.fixture
def broken_server() -> Iterator[str]:
    """A server whose /health is well but which answers all else with 404."""

    class Broken(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_unreachable_server_is_named_without_its_credentials(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match=r"no MLflow server answers at http://127\.0\.0\.1:9 ") as caught:
        track(report(tmp_path, 0.6), PROVENANCE, "http://user:hidden@127.0.0.1:9", CONFIG)
    assert "hidden" not in str(caught.value)


def test_a_server_that_is_not_mlflow_is_an_endpoint_error(tmp_path: Path, broken_server: str) -> None:
    with pytest.raises(EndpointError, match="refused the report"):
        track(report(tmp_path, 0.6), PROVENANCE, broken_server, CONFIG)


def test_a_training_log_line_that_is_no_number_names_line_and_field() -> None:
    with pytest.raises(RecordError, match=r"train_log\.jsonl, line 3: field 'loss'"):
        parse_record(CurvePoint, b'{"step": 1, "loss": "low"}', "train_log.jsonl", 3)


def test_params_are_flattened_in_order_and_secrets_left_out() -> None:
    params = {"b": [1, 2], "a": {"d": None, "c": True}, "max_tokens": 96, "endpoint": {"OPENAI_API_KEY": "sk-hidden"}}
    assert list(flatten(params)) == [("a.c", "True"), ("a.d", "None"), ("b", "[1, 2]"), ("max_tokens", "96")]
