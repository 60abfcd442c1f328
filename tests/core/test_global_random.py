import random

from deepsearch_rl.core.global_random import seeded_global_random


def test_a_seeded_block_draws_the_same_and_leaves_the_generator_as_it_was() -> None:
    random.seed(1)
    expected = random.random()

    random.seed(1)
    with seeded_global_random("7/3"):
        first = random.random()
    assert random.random() == expected

    with seeded_global_random("7/3"):
        assert random.random() == first
    with seeded_global_random("7/4"):
        assert random.random() != first
