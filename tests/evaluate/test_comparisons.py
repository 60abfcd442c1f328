"""Comparisons of two models, and p-values that are corrected for several of them."""

import itertools
import random
from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_json, write_jsonl
from deepsearch_rl.evaluate.comparisons import holm
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


def by_closed_testing(p_values: list[float]) -> list[float]:
    """The largest Bonferroni p-value of all sets of hypotheses that hold one of them (Marcus, Peritz, Gabriel 1976)."""
    largest = [0.0] * len(p_values)
    for size in range(1, len(p_values) + 1):
        for chosen in itertools.combinations(range(len(p_values)), size):
            bonferroni = min(1.0, size * min(p_values[position] for position in chosen))
            for position in chosen:
                largest[position] = max(largest[position], bonferroni)
    return largest


def test_corrected_p_values_are_those_of_rs_p_adjust() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize("seed", range(20))
def test_corrected_p_values_are_those_of_closed_bonferroni_tests(seed: int) -> None:
    rng = random.Random(seed)
    p_values = [rng.choice([rng.random() ** 4, 0.25, 1.0]) for _ in range(rng.randint(1, 8))]
    assert holm(p_values) == pytest.approx(by_closed_testing(p_values))


def test_one_test_keeps_its_p_value_and_none_has_none() -> None:
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
