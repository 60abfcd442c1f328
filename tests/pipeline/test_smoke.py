"""The whole graph, for real, at the smallest size."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.records import Trajectory
from deepsearch_rl.evaluate.tables import F1Table
from tests.pipeline.smoke_copy import GRAPH, finish, run, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PARAMS = "profiles/smoke/params.yaml"
TRAJECTORIES = "data/smoke/trajectories/teacher.jsonl"
MODELS = {"base", "sft", "sft_rl"}
DATASETS = {"multihoprag", "musique", "2wikimultihopqa", "hotpotqa"}


@contextmanager
def other_params(folder: Path, **changes: dict[str, object]) -> Iterator[None]:
    """Change sections of the params until the block ends; the finished results then come back from DVC's cache."""
    path = folder / PARAMS
    text = path.read_text()
    params = yaml.safe_load(text)
    for section, values in changes.items():
        params[section] |= values
    path.write_text(yaml.safe_dump(params, sort_keys=False))
    try:
        yield
    finally:
        path.write_text(text)
        run(folder, "dvc", "repro", f"{GRAPH}:filter")


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


def test_a_second_run_has_nothing_to_do(finished: Path) -> None:
    assert "Data and pipelines are up to date." in run(finished, "dvc", "repro", GRAPH)


def test_the_tracked_report_speaks_of_the_same_models(finished: Path) -> None:
    tracked = json.loads((finished / "reports/smoke/track.json").read_text())
    assert set(tracked["models"]) == MODELS


def test_a_model_that_teaches_itself_is_trained_on_what_it_wrote(finished: Path) -> None:
    teaching = {"teacher": "models/smoke/base", "questions": 12, "samples": 2, "temperature": 1.0}
    # A model this small is hardly ever right
    lenient = {"predicates": ["answered"], "per_question": 2}
    with other_params(finished, synthesize=teaching, filter=lenient):
        run(finished, "dvc", "repro", f"{GRAPH}:filter")
        rollouts = list(read_jsonl(finished / TRAJECTORIES, Trajectory))
        kept = json.loads((finished / "reports/smoke/filter.json").read_text())["rows"]

    assert len(rollouts) == 24
    # The scripted teacher answers once, at temperature 0
    assert {(rollout.sample, rollout.temperature) for rollout in rollouts} == {(0, 1.0), (1, 1.0)}
    assert 1 <= kept <= sum(rollout.answer is not None for rollout in rollouts)


def test_a_killed_stage_resumes(finished: Path) -> None:
    with other_params(finished, synthesize={"samples": 40}):
        process = start(finished, "dvc", "repro", "--single-item", f"{GRAPH}:synthesize")
        log = first_rollouts(finished)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # What the killed run has answered is not answered again
        line, *others = log.read_text().splitlines(keepends=True)
        first = json.loads(line)
        log.write_text("".join([json.dumps(first | {"answer": "kept"}) + "\n", *others]))

        run(finished, "dvc", "repro", "--single-item", f"{GRAPH}:synthesize")
        rollouts = list(read_jsonl(finished / TRAJECTORIES, Trajectory))

    assert len({(rollout.question_id, rollout.sample) for rollout in rollouts}) == len(rollouts)
    assert [rollout.answer for rollout in rollouts].count("kept") == 1


def test_a_stage_whose_code_is_edited_while_it_runs_fails(finished: Path) -> None:
    source = finished / "src/deepsearch_rl/agent/synthesize.py"
    text = source.read_text()
    with other_params(finished, synthesize={"samples": 41}):
        process = start(finished, "dvc", "repro", "--single-item", f"{GRAPH}:synthesize")
        first_rollouts(finished)
        source.write_text(f"{text}# edited\n")
        status, output = finish(process)
        source.write_text(text)

    assert status != 0
    assert "src/deepsearch_rl/agent/synthesize.py" in output.partition("error: ")[2]


def first_rollouts(folder: Path) -> Path:
    """Wait until the stage synthesize has logged two rollouts; return its log."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for log in (folder / "work/smoke").rglob("*.jsonl"):
            if "synthesize" in log.as_posix() and log.read_text().count('"question_id"') >= 2:
                return log
        time.sleep(0.05)

    raise AssertionError("synthesize has begun nothing")
