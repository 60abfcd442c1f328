import random

import pytest

from deepsearch_rl import answers
from deepsearch_rl.evaluation.constant import best_constant

WORDS = ("port", "vale", "the", "yes", "no", "Yes.", "noanswer", "stoke", "port vale", "vale vale", "")


def by_trying_each(golden_answers: list[list[str]]) -> tuple[float, float]:
    def means(answer: str) -> tuple[float, float]:
        scored = [answers.score(answer, golds) for golds in golden_answers]
        return round(sum(one.f1 for one in scored) / len(scored), 12), sum(one.em for one in scored) / len(scored)

    return max(means(gold) for golds in golden_answers for gold in golds)


@pytest.mark.parametrize("seed", range(20))
def test_no_golden_answer_scores_better_when_each_is_tried(seed: int) -> None:
    rng = random.Random(seed)
    golden_answers = [
        [" ".join(rng.choices(WORDS, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 3))] for _ in range(9)
    ]
    found = best_constant(golden_answers)
    assert (found.f1, found.em) == by_trying_each(golden_answers)


def test_equal_candidates_are_decided_by_the_alphabet() -> None:
    assert best_constant([["stoke"], ["burslem"]]).answer == "burslem"


def test_many_distinct_answers_leave_the_most_frequent_one() -> None:
    found = best_constant([[f"name{number}"] for number in range(2000)] + [["Port Vale"]] * 3)
    assert (found.answer, found.f1) == ("Port Vale", pytest.approx(3 / 2003))
