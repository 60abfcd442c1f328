"""Predictions and results of other systems: failed rows and unknown figures."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.records import StopReason, Trajectory
from deepsearch_rl.evaluate.predictions import score_predictions
from deepsearch_rl.evaluate.published import import_results
from deepsearch_rl.evaluate.trajectory_statistics import read_statistics

Line = dict[str, Any]
NAN = float("nan")
QUESTION = {"id": "q", "question": "Who?", "golden_answers": ["x"]}


def write(path: Path, *lines: Line) -> Path:
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def run(*arguments: object) -> str:
    """What a command prints."""
    result = CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


ERRORED: list[Line] = [
    {"pred": None},
    {"pred": NAN},
    {"pred": None, "error": "timeout"},
    {"pred": "x", "error": {"code": 5}},
]


@pytest.mark.parametrize("row", [*ERRORED, {"pred": ""}, {}], ids=repr)
def test_an_errored_row_is_a_failure_of_its_kind_and_stays_in_the_denominator(
    tmp_path: Path, row: Line
) -> None:
    path = write(tmp_path / "p.jsonl", QUESTION | {"pred": "x"}, QUESTION | {"id": "r"} | row)
    scored = score_predictions(path)
    kind = "model_error" if "error" in row else "no_answer_tag"
    assert (scored.rows, scored.failures) == (2, {kind: 1})
    assert scored.scores.metrics["em"].tolist() == [1.0, 0.0]
    assert json.loads(run("score", path, "--json", "--draws", 0))["failures"] == {kind: 1}
    assert f"1 of 2 answers are failures: {kind} 1" in run("score", path, "--draws", 0)


def test_a_file_whose_answers_have_another_key_is_refused_instead_of_scored_as_zero(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "p.jsonl", QUESTION | {"prediction": "x"})
    with pytest.raises(ArtifactError, match="has the key `pred`"):
        score_predictions(path)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ({"pred": None, "answer": None, "error": "timeout"}, StopReason.MODEL_ERROR),
        ({"pred": None, "answer": None, "error": {"code": 502}}, StopReason.MODEL_ERROR),
        ({"pred": None, "answer": None}, StopReason.NO_ANSWER_TAG),
        ({"pred": NAN, "answer": NAN, "error": NAN}, StopReason.NO_ANSWER_TAG),
        ({"pred": "x", "answer": None, "error": False}, StopReason.ANSWERED),
        ({"pred": "x", "error": {}}, StopReason.ANSWERED),
        ({}, StopReason.NO_ANSWER_TAG),
        (None, StopReason.NO_ANSWER_TAG),
        (NAN, StopReason.NO_ANSWER_TAG),
    ],
)
def test_an_errored_result_is_imported_as_a_failed_rollout(
    tmp_path: Path, output: object, reason: StopReason
) -> None:
    path = write(tmp_path / "r.jsonl", QUESTION | {"output": output})
    import_results(path, tmp_path / "t.jsonl", "m")
    [trajectory] = read_jsonl(tmp_path / "t.jsonl", Trajectory)
    assert trajectory.stop_reason is reason


def test_statistics_leave_out_what_results_of_other_systems_cannot_know(tmp_path: Path) -> None:
    """Zero searches would be a figure; there is none."""
    path = write(
        tmp_path / "r.jsonl", QUESTION | {"output": {"pred": "x"}, "supporting_titles": ["Water"]}
    )
    import_results(path, tmp_path / "t.jsonl", "m")
    gold = write(tmp_path / "q.jsonl", QUESTION | {"supporting_titles": ["Water"]})
    everything = read_statistics(tmp_path / "t.jsonl", gold).groups["all"]
    assert set(everything.figures) == {"em", "f1", "acc", "precision", "recall"}
    assert (everything.rollouts, everything.rounds, everything.tool_calls) == (1, {}, {})
    table = run("trajectories", "stats", tmp_path / "t.jsonl", "--questions", gold)
    assert "searches" not in table
    assert "tool calls" not in table
