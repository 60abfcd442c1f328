"""The whole graph, for real, at the smallest size."""

import json
import sqlite3
from pathlib import Path

import pytest
import yaml

from deepsearch_rl.cli.summary import latest_runs
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.records import Trajectory
from deepsearch_rl.evaluate.tables import F1Table
from tests.pipeline.disturbed_runs import edits, kills
from tests.pipeline.findings import faults
from tests.pipeline.finished_graph import FinishedGraph
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


@pytest.mark.nightly
def test_a_fault_in_a_function_of_a_stage_is_noticed_and_one_outside_runs_nothing(
    finished: Path,
) -> None:
    findings = list(faults(FinishedGraph(finished), "chunk", per_stage=1, seed=1))
    assert [finding.part for finding in findings] == ["outside", "outside", "fault"]
    assert [finding for finding in findings if finding.is_survivor] == []


def test_a_model_that_teaches_itself_is_trained_on_what_it_wrote(finished: Path) -> None:
    graph = FinishedGraph(finished)
    params = yaml.safe_load(graph.read(PARAMS))
    teaching = {"teacher": "models/smoke/base", "questions": 12, "samples": 2, "temperature": 1.0}
    params["synthesize"] |= teaching
    # A model this small is hardly ever right
    params["filter"] |= {"predicates": ["answered"], "per_question": 2}

    with graph.experiment("filter"), graph.experiment("synthesize"):
        graph.write(PARAMS, yaml.safe_dump(params, sort_keys=False))
        # No cache of DVC has it
        graph.write(FUNNEL, graph.read(FUNNEL))
        for stage in ("synthesize", "filter"):
            run = graph.repro(stage)
            assert run.status == 0, run.output
            assert run.has_run

        rollouts = list(read_jsonl(finished / "data/smoke/trajectories/teacher.jsonl", Trajectory))
        kept = json.loads(graph.read(FUNNEL))["rows"]

    assert len(rollouts) == 24
    # The scripted teacher answers once, at temperature 0
    assert {(rollout.sample, rollout.temperature) for rollout in rollouts} == {(0, 1.0), (1, 1.0)}
    assert 1 <= kept <= sum(rollout.answer is not None for rollout in rollouts)


@pytest.mark.nightly
def test_a_killed_stage_resumes_with_the_code_that_it_was_killed_in_and_with_no_other(
    finished: Path,
) -> None:
    findings = list(kills(FinishedGraph(finished), "synthesize", seed=1))
    assert len(findings) == 2
    assert [finding for finding in findings if finding.is_survivor] == []


@pytest.mark.nightly
def test_the_result_of_a_stage_that_was_edited_while_it_ran_is_nowhere(finished: Path) -> None:
    findings = list(edits(FinishedGraph(finished), "synthesize", seed=1, way="dvc repro"))
    assert len(findings) == 2
    assert [finding for finding in findings if finding.is_survivor] == []
