"""Answers and scores; expected values follow SQuAD v1.1's official script and FlashRAG's metrics."""

import pytest

from deepsearch_rl.core.answers import (
    INSUFFICIENT,
    METRICS,
    ZERO,
    extract_answer,
    f1,
    is_refusal,
    normalise,
    score,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> Port Vale </answer>", "Port Vale"),
        ("first <answer>x</answer>, then <answer>y</answer>", "y"),
        ("<answer>x <answer>y</answer>", "y"),
        ("<answer>x</answer> rest </answer>", "x</answer> rest"),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("<answer></answer>", ""),
        ("<answer>cut off", ""),
        ("x</answer>", ""),
        ("</answer><answer>", ""),
        ("<answer>x</answer> and again <answer>y", ""),
        ("<answer>x</answer><answer></answer>", ""),
        ("<ANSWER>x</ANSWER>", ""),
        ("<answer>" * 20_000 + "x" + "</answer>" * 20_000, "x" + "</answer>" * 19_999),
        ("", ""),
    ],
)
def test_the_answer_is_what_stands_between_the_last_opening_and_the_last_closing_tag(
    text: str, answer: str
) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Quick, brown fox!", "quick brown fox"),
        ("an apple a day", "apple day"),
        ("theatre", "theatre"),
        ("A.I.", "ai"),  # punctuation goes before articles: "a.i." is no article
        ("it's", "its"),
        ("  ", ""),
    ],
)
def test_normalising_lowers_then_drops_punctuation_then_articles_then_spaces(
    text: str, normal: str
) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("answer", "refuses"),
    [
        (INSUFFICIENT, True),
        ("  insufficient   information", True),
        ("The insufficient information!", True),
        ("Insufficient information about Port Vale", False),
        ("information", False),
        ("", False),
    ],
)
def test_a_refusal_is_known_however_it_is_written(answer: str, refuses: bool) -> None:
    assert is_refusal(answer) == refuses


def test_exact_match_compares_normalised_texts_with_every_gold() -> None:
    assert score("the Port Vale.", ["Stoke", "port vale"]).em == 1
    assert score("Port", ["Port Vale"]).em == 0
    assert score("", [""]).em == 1


def test_accuracy_is_containment_of_a_gold_that_is_not_empty() -> None:
    assert score("It is Port Vale, I think", ["Port Vale"]).acc == 1
    assert score("Port", ["Port Vale"]).acc == 0
    assert score("anything", ["the", "!"]).acc == 0


def test_token_overlap_counts_repeated_tokens_once_per_occurrence() -> None:
    # prediction 4 tokens, gold 3, common 2: precision 1/2, recall 2/3
    assert score("vale vale port port", ["port vale burslem"]).precision == pytest.approx(1 / 2)
    assert score("vale vale port port", ["port vale burslem"]).recall == pytest.approx(2 / 3)
    assert f1("vale vale port port", ["port vale burslem"]) == pytest.approx(4 / 7)


def test_precision_and_recall_take_their_best_gold_each() -> None:
    golds = ["port", "port vale burslem stoke"]
    assert score("port vale", golds).precision == 1.0  # of the second
    assert score("port vale", golds).recall == 1.0  # of the first
    assert f1("port vale", golds) == pytest.approx(2 / 3)


@pytest.mark.parametrize("closed", ["yes", "no", "noanswer"])
def test_a_closed_answer_on_either_side_must_match_exactly(closed: str) -> None:
    assert f1(f"{closed} it is", [closed]) == 0
    assert f1(closed, [f"{closed} it is"]) == 0
    assert f1(f"{closed.upper()}.", [closed]) == 1


def test_no_gold_scores_zero_and_no_metric_leaves_the_unit_interval() -> None:
    assert score("Port Vale", []) == ZERO
    assert METRICS == ("em", "f1", "acc", "precision", "recall")
    assert all(0.0 <= value <= 1.0 for value in score("Port Vale of old", ["Port Vale", "the"]))
