"""What the writer's replies may look like: slips of form are read, and what means nothing is no draft."""

import json
from typing import Any

import pytest

from deepsearch_rl.data.question_writing.drafts import Draft, read_drafts
from deepsearch_rl.data.question_writing.links import PassageGroup
from tests.chunks import make_chunk

GROUP = PassageGroup((make_chunk("Tower\nIt was built in 1979."),), (), "train")
PROOF = {"passage": 1, "sentence": "It was built in 1979."}


def read(**changes: Any) -> list[Draft]:
    row = {
        "type": "single",
        "question": "When was it built?",
        "answer": "1979",
        "evidence": [PROOF],
    }
    return read_drafts(json.dumps({"questions": [row | changes]}), GROUP)


@pytest.mark.parametrize(
    ("answer", "text"), [(1979, "1979"), (3.5, "3.5"), (True, "yes"), (False, "no"), ("P", "P")]
)
def test_an_answer_that_is_no_text_in_json_is_read_as_one(answer: object, text: str) -> None:
    [draft] = read(answer=answer)
    assert draft.answer == text


@pytest.mark.parametrize("field", ["question", "answer"])
def test_half_a_surrogate_pair_is_read_as_a_question_mark(field: str) -> None:
    [draft] = read(**{field: "a \ud83d b"})
    assert getattr(draft, field) == "a ? b"


def test_half_a_surrogate_pair_in_a_quoted_sentence_leaves_text_that_a_file_can_hold() -> None:
    [draft] = read(evidence=[{"passage": 1, "sentence": "It \ud83d"}])
    assert [sentence for _, sentence in draft.proofs] == ["It ?"]


def test_evidence_that_is_null_is_none() -> None:
    [draft] = read(evidence=None)
    assert draft.proofs == ()


@pytest.mark.parametrize("answer", [None, "", [], {"year": 1979}])
def test_an_answer_that_is_missing_or_no_value_makes_the_reply_unreadable(answer: object) -> None:
    assert read(answer=answer) == []


def test_a_reply_that_is_nested_too_deep_is_unreadable() -> None:
    assert read_drafts('{"questions": ' + "[" * 100_000 + "}", GROUP) == []
