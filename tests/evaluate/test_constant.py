import random
from statistics import fmean

import numpy as np
import pytest

from deepsearch_rl.core import answers
from deepsearch_rl.evaluate.overlap import ConstantAnswers, best_constant, number_golds

WORDS = (
    "port",
    "vale",
    "the",
    "yes",
    "no",
    "Yes.",
    "noanswer",
    "stoke",
    "port vale",
    "vale vale",
    "",
)


def best_by_exhaustive_search(golden_answers: list[tuple[str, ...]]) -> tuple[float, float]:
    def means(answer: str) -> tuple[float, float]:
        scored = [answers.score(answer, golds) for golds in golden_answers]
        return round(fmean(score.f1 for score in scored), 12), fmean(score.em for score in scored)

    return max(means(gold) for golds in golden_answers for gold in golds)


def random_questions(rng: random.Random, most: int) -> list[tuple[str, ...]]:
    """Return nine questions with at most ``most`` golden answers each."""
    return [
        tuple(
            " ".join(rng.choices(WORDS, k=rng.randint(1, 3))) for _ in range(rng.randint(1, most))
        )
        for _ in range(9)
    ]


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_no_golden_answer_scores_better_than_the_constant(seed: int, most: int) -> None:
    golden_answers = random_questions(random.Random(seed), most)
    constant = best_constant(golden_answers)
    assert (constant.f1, constant.em) == best_by_exhaustive_search(golden_answers)
    alone = [
        (score.f1, score.em)
        for score in (answers.score(constant.answer, golds) for golds in golden_answers)
    ]
    assert np.mean(alone, axis=0).tolist() == pytest.approx([constant.f1, constant.em])


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_the_constant_of_a_subset_is_the_one_computed_from_that_subset_alone(
    seed: int, most: int
) -> None:
    rng = random.Random(seed)
    golden_answers = random_questions(rng, most)
    included = [True, *(rng.random() < 0.5 for _ in golden_answers[1:])]
    alone = [golds for golds, use in zip(golden_answers, included, strict=True) if use]
    assert ConstantAnswers(number_golds(golden_answers)).best(np.array(included)) == best_constant(
        alone
    )


def test_only_golden_answers_are_candidates_though_another_text_may_score_higher() -> None:
    golden_answers = [("East Vale",), ("East Hill",), ("North Stoke",), ("South Stoke",)]
    constant = best_constant(golden_answers)
    mixed = [answers.score("East Stoke", golds).f1 for golds in golden_answers]
    assert (constant.answer, constant.f1) == ("East Hill", 1.5 / 4)
    assert np.mean(mixed) == pytest.approx(2 / 4)


def test_the_constant_maximises_f1_over_the_whole_set() -> None:
    # "Port Vale" scores 1, 1, 0 and, sharing a word with "Vale", 2/3.
    constant = best_constant([("Port Vale",), ("Port Vale",), ("Stoke",), ("Vale", "Stoke")])
    assert (constant.answer, constant.em) == ("Port Vale", 0.5)
    assert constant.f1 == pytest.approx((1 + 1 + 0 + 2 / 3) / 4)


def test_equal_candidates_are_ordered_alphabetically() -> None:
    assert best_constant([("stoke",), ("burslem",)]).answer == "burslem"


def test_many_distinct_answers_leave_the_most_frequent_one() -> None:
    constant = best_constant([(f"name{number}",) for number in range(2000)] + [("Port Vale",)] * 3)
    assert (constant.answer, constant.f1) == ("Port Vale", pytest.approx(3 / 2003))
