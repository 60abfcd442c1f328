import pytest

from deepsearch_rl.core.records import Question
from deepsearch_rl.search.gold import gold_evidence, warn_of_missing
from tests.chunks import make_chunk


def question(**metadata) -> Question:
    return Question.model_validate(
        {"id": "q", "question": "?", "golden_answers": ["x"], "metadata": metadata}
    )


FACTS = [{"fact": "the moon  is\nfar"}, {"fact": "it is cold"}]


def test_a_chunk_holds_the_facts_that_it_contains_whatever_the_white_space() -> None:
    gold = gold_evidence(question(evidence_list=FACTS, supporting_doc_ids=["d"]))
    assert gold.found_in(make_chunk("Moon\nWe know the moon is far.")) == {0}


def test_without_facts_a_chunk_counts_by_its_document() -> None:
    gold = gold_evidence(question(supporting_doc_ids=["a", "d", "a"], supporting_titles=["Moon"]))
    assert (gold.kind, len(gold.items)) == ("documents", 2)
    assert gold.found_in(make_chunk("Moon\nx", doc_id="d")) == {1}
    assert gold.found_in(make_chunk("Moon\nx", doc_id="b")) == set()


def test_without_documents_a_chunk_counts_by_its_title_with_or_without_quotes() -> None:
    gold = gold_evidence(question(supporting_titles=["Moon", "Sun"]))
    assert gold.found_in(make_chunk('"Moon"\nx')) == gold.found_in(make_chunk("Moon\nx")) == {0}


def test_no_known_evidence_is_no_gold() -> None:
    assert gold_evidence(question(evidence_list=[])) is gold_evidence(question()) is None


def test_a_fact_of_white_space_is_none() -> None:
    gold = gold_evidence(question(evidence_list=[{"fact": " \n"}, {"fact": "it is cold"}]))
    assert gold.items == ("itiscold",)
    only_blank = gold_evidence(question(evidence_list=[{"fact": " "}], supporting_doc_ids=["d"]))
    assert only_blank.kind == "documents"


def test_facts_that_no_passage_holds_are_counted_and_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chunks = [make_chunk('Moon\nHe said "it is far" and'), make_chunk("Moon\nleft. A b c.")]
    curly, cut = "said \u201cit is far\u201d", "and left."
    facts = [curly, cut, 'said "it\nis far"', "A b", "A b c.", "c", " "]
    asked = [question(evidence_list=[{"fact": fact}]) for fact in facts]
    warn_of_missing(chunks, asked, "news, val")
    assert f"news, val: 2 of 6 gold facts are in no passage: {curly!r}, {cut!r}" in caplog.text


def test_a_set_of_which_only_a_part_has_gold_says_so(caplog: pytest.LogCaptureFixture) -> None:
    chunks = [make_chunk("Moon\nx")]
    known, unanswerable, unknown = (
        question(supporting_titles=["Moon"]),
        question(evidence_list=[]),
        question(),
    )
    warn_of_missing(chunks, [known, unanswerable], "news, val")
    assert caplog.text == ""
    warn_of_missing(chunks, [known, unanswerable, unknown, unknown], "news, val")
    assert "the gold evidence of 2 of 4 questions is not known" in caplog.text
