from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from deepsearch_rl.search.ranking import (
    FusionConfig,
    Ranking,
    ReciprocalRankFusion,
    rank,
)

RANKS = {
    "depth": 10,
    "source_depth": 5,
    "unlearned": "bm25",
    "rrf_k": 60,
    "bm25_weight": 1.0,
    "dense_weight": 0.5,
    "learning": None,
}


@dataclass
class FixedRetriever:
    rows: list[int]

    def search(self, queries: Sequence[str], top_k, allowed_N=None):  # noqa: ARG002 - the protocol's
        found = np.array(self.rows[:top_k], dtype=np.int64)
        return [Ranking(found, np.linspace(1, 0.5, len(found), dtype=np.float32)) for _ in queries]


def fuse(lexical: list[int], semantic: list[int], top_k: int, **changes) -> Ranking:
    config = FusionConfig(**{**RANKS, **changes})
    [ranking] = ReciprocalRankFusion(
        FixedRetriever(lexical), FixedRetriever(semantic), config
    ).search(["q"], top_k)
    return ranking


def test_ranks_are_weighted_and_added() -> None:
    ranking = fuse([3, 7], [7, 5], 10)
    assert ranking.rows_K.tolist() == [7, 3, 5]
    assert ranking.scores_K.tolist() == pytest.approx([1 / 62 + 0.5 / 61, 1 / 61, 0.5 / 62])


def test_equal_scores_are_ordered_by_row() -> None:
    assert fuse([9], [4], 2, dense_weight=1.0).rows_K.tolist() == [4, 9]


def test_more_rows_than_the_depth_can_be_asked_for() -> None:
    assert len(fuse([1, 2, 3, 4], [], 4, depth=1).rows_K) == 4


def test_ties_across_the_cut_are_decided_by_row() -> None:
    rows_N = np.array([8, 2, 5, 1, 9])
    ranking = rank(rows_N, np.array([1, 1, 1, 1, 2], dtype=np.float32), 3)
    assert ranking.rows_K.tolist() == [9, 1, 2]
