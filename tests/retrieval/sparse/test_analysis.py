import pytest

from deepsearch_rl.retrieval.sparse.analysis import STEMS_KEPT, analyse, stem


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The LANDERS landed, and landed!", ["lander", "land", "land"]),
        ("Straße in Zürich", ["straße", "zürich"]),
        ("東京タワー 2023-10-30", ["東京タワー", "2023", "10", "30"]),
        ("don't", ["don", "t"]),
        ("the of and", []),
        ("?! \n\t", []),
    ],
)
def test_text_becomes_lower_case_stems_without_stop_words(text, terms):
    assert analyse(text) == terms


def test_the_stems_that_are_kept_are_bounded():
    assert stem.cache_info().maxsize == STEMS_KEPT
