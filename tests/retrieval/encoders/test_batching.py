import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deepsearch_rl.retrieval.encoders.batching import embed_by_length, token_batches


@given(st.lists(st.integers(1, 60), max_size=80), st.integers(1, 200))
def test_every_row_is_in_one_batch_and_no_batch_exceeds_the_budget(lengths_N, batch_tokens):
    batches = list(token_batches(lengths_N, batch_tokens))
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths_N)))
    for batch in batches:
        longest = lengths_N[batch[0]]
        assert longest == max(lengths_N[row] for row in batch)
        assert len(batch) == 1 or len(batch) * longest <= batch_tokens


def test_rows_of_one_length_fill_the_budget_and_the_longest_come_first():
    assert list(token_batches([2, 8, 2, 2, 8], 16)) == [[1, 4], [0, 2, 3]]


def test_vectors_come_back_in_the_order_of_the_texts():
    tokens = [[5], [7, 7, 7], [1, 2], [9]]

    def sums_and_padding(ids_BT, mask_BT):
        assert (ids_BT[mask_BT == 0] == 100).all()
        return np.stack([(ids_BT * mask_BT).sum(1), mask_BT.sum(1)], axis=1).astype(np.float32)

    embeddings_ND = embed_by_length(tokens, 4, 100, sums_and_padding)
    assert embeddings_ND.tolist() == [[5, 1], [21, 3], [3, 2], [9, 1]]
