"""Comparisons of two models in the table."""

from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_json, write_jsonl
from deepsearch_rl.evaluate.f1_row import ModelEvaluation, run_file
from deepsearch_rl.evaluate.score import build_row
from deepsearch_rl.evaluate.tables import build_table
from tests.evaluate.conftest import make_rollout, row_key

QUESTIONS = 20


def evaluated(folder: Path, model: str, samples: int, right: int) -> Path:
    """Write the evaluation of a model that answers the first ``right`` questions, in all their samples."""
    rollouts = [
        make_rollout(number, sample, "Port Vale" if number < right else "elsewhere", model=model)
        for number in range(QUESTIONS)
        for sample in range(samples)
    ]
    write_jsonl(folder / run_file("musique", "search", 0.7), rollouts)
    row = build_row(row_key(model, "musique", "outworld", samples), rollouts, True, 100)
    evaluation = ModelEvaluation(model=model, seed=0, settings_sha256="s", inputs={}, rows=(row,))
    write_json(folder / "rows.json", evaluation.model_dump(mode="json"))
    return folder


@pytest.mark.parametrize(("samples", "samples_of_base"), [(2, 1), (1, 2), (2, 2)])
def test_models_with_other_numbers_of_samples_are_compared_by_the_means_of_questions(
    samples: int, samples_of_base: int, tmp_path: Path
) -> None:
    folders = {
        "sft": evaluated(tmp_path / "sft", "sft", samples, right=15),
        "base": evaluated(tmp_path / "base", "base", samples_of_base, right=5),
    }
    (comparison,) = build_table("tiny", folders, [("sft", "base")], 0, 200).comparisons
    assert comparison.difference == pytest.approx(10 / QUESTIONS)
