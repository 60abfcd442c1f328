"""Many answers at once score what each scores alone, and what the published definitions say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepsearch_rl.core import answers
from deepsearch_rl.evaluate.overlap import number_golds, score_rows
from tests.evaluate.published import normal, published

WORDS = [
    "port",
    "vale",
    "the",
    "An",
    "yes",
    "No",
    "noanswer",
    "Zoë's",
    "1,000",
    "A.I.",
    "ΟΔΟΣ",
    "İzmir",
    "a\u2013b",
]
SPACES = [
    " ",
    "\t",
    "\n",
    "\u00a0",
    "\u3000",
    "\x1f",
    ".",
    "-",
    "_",
    "\x00",
    "\u200d",
    "\u0301",
    "",
]
PHRASES = st.lists(st.sampled_from(WORDS + SPACES), max_size=8).map("".join)
ANY_TEXT = st.text(max_size=20)


@given(text=PHRASES | ANY_TEXT)
def test_normalising_follows_the_definition_letter_by_letter(text: str) -> None:
    assert answers.normalise(text) == normal(text)


@given(text=st.text(st.characters(categories=["Cs", "Lu", "Po"])))
def test_halves_of_surrogate_pairs_are_letters_like_others(text: str) -> None:
    assert answers.normalise(text) == normal(text)


@pytest.mark.slow
@given(
    rows=st.lists(
        st.tuples(PHRASES | ANY_TEXT, st.lists(PHRASES | ANY_TEXT, min_size=1, max_size=4)),
        min_size=1,
    )
)
def test_many_rows_score_what_each_scores_alone(rows: list[tuple[str, list[str]]]) -> None:
    golds = number_golds([tuple(golds) for _, golds in rows])
    scores = score_rows(golds, np.arange(len(rows)), [pred for pred, _ in rows])
    assert scores.tolist() == [list(answers.score(pred, golds)) for pred, golds in rows]


@pytest.mark.slow
@given(pred=PHRASES, golds=st.lists(PHRASES, min_size=1, max_size=4))
def test_every_metric_is_that_of_the_published_definitions(pred: str, golds: list[str]) -> None:
    [scores] = score_rows(number_golds([tuple(golds)]), np.array([0]), [pred])
    expected = published(pred, golds)
    assert dict(zip(answers.METRICS, scores.tolist(), strict=True)) == pytest.approx(
        expected, rel=0, abs=1e-12
    )


def test_rows_may_answer_questions_in_any_order_and_some_not_at_all() -> None:
    golds = number_golds([("Port Vale", "Vale of Port"), ("yes",), ("Stoke",)])
    scores = score_rows(golds, np.array([2, 0, 2]), ["stoke", "Vale Port", "yes"])
    assert scores[:, answers.METRICS.index("f1")].tolist() == [1.0, 1.0, 0.0]
