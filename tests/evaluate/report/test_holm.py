"""Corrected p-values, against R's figures and against the definition by closed testing."""

import itertools
import random

import pytest

from deepsearch_rl.evaluate.comparisons import holm


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
