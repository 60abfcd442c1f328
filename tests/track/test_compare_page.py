"""MLflow's own server and pages: a report sent over HTTP, and its models' runs compared in a real browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from mlflow.tracking import MlflowClient
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from deepsearch_rl.core.processes import ProcessGuard
from deepsearch_rl.track.build_bundle import build_bundle
from deepsearch_rl.track.upload import upload
from flows.server import START_TIMEOUT_S, start_server
from flows.ui import runs_page
from tests.browsing import chromium
from tests.ports import free_port
from tests.track.conftest import (
    CONFIG,
    MODELS,
    PROVENANCE,
    SEED,
    make_results,
    new_store,
    traces_experiment,
)

__all__ = ["chromium"]
TIMEOUT_S = 60.0
"""For one request: a machine that does much else answers late."""
ROW = """
const [name] = [...document.querySelectorAll('[role=grid] a')].filter(link => link.textContent === arguments[0]);
if (!name) return [];
const row = name.getBoundingClientRect(), middle = (row.top + row.bottom) / 2, cells = new Map();
for (const cell of document.querySelectorAll('[role=grid] *')) {
  const box = cell.getBoundingClientRect();
  const inRow = box.top <= middle && middle <= box.bottom && box.left > row.right, text = cell.textContent.trim();
  if (inRow && !cell.children.length && text) cells.set(Math.round(box.left), text);
}
return [...cells].sort((one, other) => one[0] - other[0]).map(cell => cell[1]);
"""
"""The texts of a metric's row in the compare page's table from left to right: what stands at the height of its name."""

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server with one report of three models."""
    folder = tmp_path_factory.mktemp("mlflow")
    store = [
        "--backend-store-uri",
        new_store(folder),
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    with ProcessGuard() as guard:
        command = ["mlflow", "server", *store, "--workers", "1"]
        started = start_server(guard, "MLflow-test", free_port(), "/health", command, {})
        build_bundle(make_results(folder / "results"), PROVENANCE, CONFIG, SEED, folder / "bundle")
        started.wait_until_healthy(START_TIMEOUT_S)
        assert upload(folder / "bundle", started.url, TIMEOUT_S)
        assert not upload(folder / "bundle", started.url, TIMEOUT_S)
        yield started.url


def model_runs(server: str) -> tuple[str, dict[str, str]]:
    """The experiment, and the run of every model."""
    client = MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name(CONFIG.experiment)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    models = {run.data.tags["model"]: run.info.run_id for run in runs if "model" in run.data.tags}
    return experiment.experiment_id, models


def test_the_compare_page_of_three_runs_shows_their_f1_side_by_side(
    chromium: webdriver.Chrome, server: str
) -> None:
    experiment, runs = model_runs(server)
    asked = f"runs={quote(json.dumps([runs[model] for model in MODELS]))}&experiments={quote(json.dumps([experiment]))}"
    chromium.get(f"{server}/#/compare-runs?{asked}")
    shown = {}
    for metric in ("f1/multihoprag", "f1_greedy/multihoprag"):
        shown[metric] = WebDriverWait(chromium, 60).until(
            lambda browser, name=metric: (
                row if len(row := browser.execute_script(ROW, name)) == len(MODELS) else False
            )
        )
    assert list(shown.values()) == [["0.25", "0.417", "0.583"]] * 2  # base, rl, sft
    names = chromium.find_element(By.TAG_NAME, "body").text.partition("Run Name:")[2]
    assert re.findall(r"tiny/(\w+)", names)[: len(MODELS)] == list(MODELS)
    loaded = chromium.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert {urlsplit(address).hostname for address in loaded if address.startswith("http")} == {
        "127.0.0.1"
    }


def test_the_page_of_the_runs_shows_f1_of_every_model_beside_the_report(
    chromium: webdriver.Chrome, server: str
) -> None:
    chromium.get(f"{server}{runs_page(server, CONFIG.experiment)}")
    body = chromium.find_element(By.TAG_NAME, "body")
    WebDriverWait(chromium, 60).until(lambda _: "0.583333" in body.text)
    assert {"base/f1", "0.25"} <= set(body.text.split())


def test_traces_predictions_and_models_arrive_over_http_as_in_a_local_store(
    server: str, tmp_path: Path
) -> None:
    experiment, runs = model_runs(server)
    client = MlflowClient(tracking_uri=server)
    traces = client.search_traces(
        locations=[experiment, traces_experiment(client)], run_id=runs["sft"]
    )
    assert len(traces) == 2 * 3
    for trace in traces:
        assert [span.span_type for span in trace.data.spans] == [
            "AGENT",
            "CHAT_MODEL",
            "RETRIEVER",
            "CHAT_MODEL",
        ]
        assert trace.data.spans[2].outputs[0]["page_content"] == "[1] Port Vale\nA harbour."
        assert trace.info.token_usage == {
            "input_tokens": 110,
            "output_tokens": 15,
            "total_tokens": 125,
        }
        assert {found.name for found in trace.info.assessments} == {"f1", "em", "expected_response"}
    predictions = json.loads(
        Path(client.download_artifacts(runs["sft"], "predictions.json", str(tmp_path))).read_text()
    )
    assert len(predictions["data"]) == 2 * 5
    (model,) = client.search_logged_models([experiment], f"source_run_id = '{runs['sft']}'")
    assert {
        metric.dataset_digest for metric in model.metrics or () if metric.key == "f1/multihoprag"
    } == {"b" * 36}
