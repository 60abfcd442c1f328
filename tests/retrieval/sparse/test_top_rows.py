import numpy as np
import pytest

from deepsearch_rl.retrieval.sparse.top_rows import FEW_COLUMNS, LANES, top_rows


@pytest.mark.parametrize("rows", [0, 1, 63, LANES * FEW_COLUMNS + 77, 3 * LANES * FEW_COLUMNS])
@pytest.mark.parametrize("top_k", [1, 10, 1000, 1_000_000])
@pytest.mark.parametrize("distinct", [2, 50, 1_000_000])
def test_the_best_rows_are_those_of_a_sort(rows, top_k, distinct):
    rng = np.random.default_rng([rows, top_k, distinct])
    scores_N = np.maximum(rng.integers(-distinct, distinct, rows), 0).astype(np.float32)
    expected = sorted(np.flatnonzero(scores_N).tolist(), key=lambda row: (-scores_N[row], row))[:top_k]
    ranking = top_rows(scores_N, top_k)
    assert ranking.rows_K.tolist() == expected
    assert ranking.scores_K.tolist() == scores_N[expected].tolist()


def test_a_single_positive_row_is_found_among_many():
    scores_N = np.zeros(4 * LANES * FEW_COLUMNS + 5, dtype=np.float32)
    scores_N[-1] = 0.5
    assert top_rows(scores_N, 10).rows_K.tolist() == [len(scores_N) - 1]
