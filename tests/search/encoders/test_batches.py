"""How the texts of a call become forward passes."""

import itertools
import math
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from deepsearch_rl.search.encoders.batches import (
    MIN_TOKENS,
    ParallelBatches,
    cheapest_batches,
    one_ahead,
    shared_budget,
)

MANY = 10**6


@pytest.mark.parametrize(
    ("batch_tokens", "batches"),
    [
        (64, [[2, 0, 1, 4, 3]]),
        (60, [[2, 0, 1, 4, 3]]),
        # A third pass would save 2 tokens of padding, and cost a pass
        (59, [[2, 0], [1, 4, 3]]),
        (24, [[2, 0], [1, 4, 3]]),
        (12, [[2], [0], [1, 4], [3]]),
        (3, [[2], [0], [1], [4], [3]]),
    ],
)
def test_a_batch_has_no_more_tokens_than_the_budget_but_at_least_one_text(
    batch_tokens: int, batches: list[list[int]]
) -> None:
    assert cheapest_batches([10, 6, 12, 5, 6], batch_tokens, MANY) == batches


@pytest.mark.parametrize("pass_tokens", [1, 20, 300])
@pytest.mark.parametrize("budget", [40, 512])
def test_no_other_groups_of_neighbouring_lengths_cost_less(pass_tokens: int, budget: int) -> None:
    lengths = [12, 3, 3, 7, 19, 7, 8, 12, 4, 3, 12, 28]
    groups = [len(list(same)) for _, same in itertools.groupby(sorted(lengths, reverse=True))]

    def cost(batches: list[list[int]]) -> int:
        return sum(max(lengths[row] for row in batch) * len(batch) for batch in batches)

    def costs_of_cuts() -> Iterator[int]:
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        ends = list(itertools.accumulate(groups))
        for cuts in itertools.product([False, True], repeat=len(ends) - 1):
            bounds = [0, *itertools.compress(ends, cuts), len(order)]
            batches = [order[begin:end] for begin, end in itertools.pairwise(bounds)]
            passes = 0
            for batch in batches:
                passes += math.ceil(len(batch) / max(1, budget // lengths[batch[0]]))
            yield cost(batches) + pass_tokens * passes

    batches = cheapest_batches(lengths, budget, pass_tokens)
    assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
    # Where a group is cut, the shorter part of its texts has less padding than was counted
    assert cost(batches) + pass_tokens * len(batches) <= min(costs_of_cuts())


@pytest.mark.parametrize(
    ("tokens", "threads", "passes"),
    [(12, 2, 1), (128, 2, 2), (600, 2, 2), (1100, 2, 4), (600, 8, 7)],
)
def test_all_threads_have_about_as_much_to_do(tokens: int, threads: int, passes: int) -> None:
    budget = shared_budget(tokens, 512, threads)
    assert MIN_TOKENS <= budget <= 512
    assert len(cheapest_batches([1] * tokens, budget, 20)) == passes


@pytest.mark.parametrize("threads", [1, 3])
def test_every_text_gets_its_own_vector_on_any_number_of_threads(threads: int) -> None:
    lengths = [row % 40 for row in range(500)]

    def embed(batch: list[int]) -> np.ndarray:
        return np.array([[row, lengths[row]] for row in batch], dtype=np.float32)

    embeddings_ND = ParallelBatches(128, 20, threads).embed(lengths, 2, embed)
    assert embeddings_ND[:, 0].tolist() == list(range(500))
    assert embeddings_ND[:, 1].tolist() == lengths


def test_the_next_item_is_computed_while_the_caller_uses_the_last_one() -> None:
    begun = [threading.Event() for _ in range(4)]

    def compute(item: int) -> int:
        begun[item].set()
        return item * 10

    results: list[int] = []
    for result in one_ahead(compute, range(4)):
        results.append(result)
        following = result // 10 + 1
        assert following == len(begun) or begun[following].wait(timeout=20)
        # One ahead, so that the memory holds two
        assert not any(event.is_set() for event in begun[following + 1 :])
    assert results == [0, 10, 20, 30]
    assert list(one_ahead(compute, [3])) == [30]


def test_an_error_ahead_reaches_the_caller() -> None:
    def compute(item: int) -> float:
        return 1 / item

    with pytest.raises(ZeroDivisionError):
        list(one_ahead(compute, [2, 1, 0, 1]))
