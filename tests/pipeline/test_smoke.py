"""The whole graph, for real, at the smallest size."""

import json
import sqlite3
from pathlib import Path

import pytest

from deepsearch_rl.cli.summary import latest_runs
from deepsearch_rl.evaluate.tables import F1Table
from tests.pipeline.smoke_copy import GRAPH, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PARAMS = "profiles/smoke/params.yaml"
FUNNEL = "reports/smoke/filter.json"
MODELS = {"base", "sft", "sft_rl"}
DATASETS = {"multihoprag", "musique", "2wikimultihopqa", "hotpotqa"}


def test_every_model_is_scored_on_every_question_set(finished: Path) -> None:
    table = F1Table.model_validate_json((finished / "reports/smoke/f1_table.json").read_bytes())
    sampled = {(row.model, row.dataset): row for row in table.rows if not row.kind}
    assert set(sampled) == {(model, dataset) for model in MODELS for dataset in DATASETS}
    assert all(0 <= row.f1_low <= row.f1 <= row.f1_high <= 1 for row in table.rows)
    assert table.generated
    eight = {row.model: set(row.pass_at) for row in table.rows if row.variant == "eight_samples"}
    assert eight == {"sft": {1, 8}, "sft_rl": {1, 8}}
    [variant] = [row for row in table.rows if row.variant == "top2_short"]
    assert (variant.model, variant.corpus, variant.chunk_size, variant.top_k) == (
        "sft",
        "world_14",
        14,
        2,
    )


def test_every_stage_leaves_its_time_and_its_peak_memory(finished: Path) -> None:
    lock = run(finished, "dvc", "stage", "list", GRAPH, "--name-only").split()
    runs = {noted.stage: noted for noted in latest_runs(finished, "smoke")}
    assert set(runs) == {name.rpartition(":")[2] for name in lock}
    assert max(noted.peak_mb for noted in runs.values()) < 6 * 1024


def test_a_second_run_has_nothing_to_do(finished: Path) -> None:
    assert "Data and pipelines are up to date." in run(finished, "dvc", "repro", GRAPH)


def test_the_summary_and_the_tracked_report_speak_of_the_same_table(finished: Path) -> None:
    table = (finished / "reports/smoke/f1_table.md").read_text().strip()
    assert table in run(finished, "deepsearch", "summary", "smoke")
    tracked = json.loads((finished / "reports/smoke/track.json").read_text())
    assert set(tracked["models"]) == MODELS


@pytest.mark.nightly
def test_the_flow_finds_every_stage_cached_and_its_server_has_the_last_logs(finished: Path) -> None:
    run(finished, "python", "-m", "flows.reproduce", "smoke")
    assert "up to date" in run(finished, "dvc", "status", GRAPH)

    with sqlite3.connect(finished / ".prefect" / "prefect.db") as database:
        logs = [message for (message,) in database.execute("SELECT message FROM log")]
    assert "Finished in state Completed()" in logs
