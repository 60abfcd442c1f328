"""Runs of any system are read as they are written."""

import json
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.core.errors import ArtifactError, RecordError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.explain.judging import Corpus, judge_run
from deepsearch_rl.evaluate.explain.runs import read_run
from tests.chunks import make_chunk
from tests.evaluate.explain.answers import make_question, make_rollout

PASSAGE = "Ada Stone\nAda Stone founded Acme Works."
OTHER = "Almanac\nThe market was wide."
BASE = {"id": "q1", "question": "Who founded Acme Works?", "golden_answers": ["Ada Stone"]}
EVIDENCE = [{"fact": "Ada Stone founded Acme Works.", "title": "Ada Stone"}]


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def cause(path: Path, corpus: Corpus | None = None) -> Cause | None:
    [answer] = judge_run(read_run(path), {}, corpus, top_k=3).answers
    return answer.cause


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"pred": "Rome", "retrievals": [{"query": "q", "passages": [PASSAGE]}]}, "not_used"),
        (
            {
                "pred": "Rome",
                "retrievals": [{"query": "q", "passages": [{"title": "Acme", "text": PASSAGE}]}],
            },
            "not_used",
        ),
        ({"pred": "Rome", "retrievals": [{"query": "q", "passages": [OTHER]}]}, "not_found"),
        ({"pred": "Rome", "retrievals": []}, "never_searched"),
        ({"pred": "Rome"}, "unknown"),
        ({"pred": "Rome", "retrievals": None}, "unknown"),
        (
            {"output": {"pred": "Rome", "retrieval_result": [{"id": 7, "contents": PASSAGE}]}},
            "not_used",
        ),
        ({"output": {"pred": "Rome", "retrieval_result": []}}, "never_searched"),
        ({"pred": "", "failed": True, "retrievals": []}, "cut_off"),
        ({"pred": "", "error": "503", "retrievals": []}, "infrastructure"),
        ({"pred": "", "stop_reason": "turn_budget", "retrievals": []}, "cut_off"),
        ({"pred": "Ada Stone", "retrievals": []}, None),
    ],
)
def test_predictions_with_what_they_retrieved_have_causes(
    tmp_path: Path, row: dict[str, Any], expected: str | None
) -> None:
    with_gold = BASE | {"metadata": {"evidence_list": EVIDENCE}} | row
    assert cause(write(tmp_path / "run.jsonl", with_gold)) == expected
    # The answer's string stands in for the gold evidence, and the passages name it
    assert cause(write(tmp_path / "run.jsonl", BASE | row)) == expected


def test_passages_that_are_named_by_id_are_those_of_the_corpus(tmp_path: Path) -> None:
    row = BASE | {"pred": "Rome", "retrievals": [{"query": "q", "chunk_ids": ["c1", 2]}]}
    path = write(tmp_path / "run.jsonl", row)
    chunks = [make_chunk(OTHER, "c1", "d1"), make_chunk(PASSAGE, "2", "d2")]
    assert cause(path, Corpus(chunks)) is Cause.NOT_USED
    with pytest.raises(ArtifactError, match=r"1 passages that are not in the corpus \(c1\)"):
        cause(path, Corpus(chunks[1:]))


def test_gold_documents_by_id_need_the_corpus_and_titles_or_the_answer_stand_in_without(
    tmp_path: Path,
) -> None:
    retrievals = [{"query": "q", "passages": [{"id": "x", "contents": PASSAGE}]}]
    for metadata in (
        {"supporting_doc_ids": ["d2"], "supporting_titles": ["Ada Stone"]},
        {"supporting_doc_ids": ["d2"]},
    ):
        row = BASE | {"pred": "Rome", "retrievals": retrievals, "metadata": metadata}
        assert cause(write(tmp_path / "run.jsonl", row)) is Cause.NOT_USED


@pytest.mark.parametrize(
    "titles", [{"supporting_titles": ["Ada Stone"]}, {}], ids=["titles", "answer"]
)
@pytest.mark.parametrize(
    "passage", [PASSAGE, {"id": "7", "contents": PASSAGE}], ids=["text", "other id"]
)
def test_texts_of_unknown_documents_are_judged_the_same_with_and_without_the_corpus(
    tmp_path: Path, passage: Any, titles: dict[str, list[str]]
) -> None:
    metadata = {"supporting_doc_ids": ["d2"]} | titles
    retrievals = [{"query": "q", "passages": [passage]}]
    row = BASE | {"pred": "Rome", "retrievals": retrievals, "metadata": metadata}
    path = write(tmp_path / "run.jsonl", row)
    # Other passages have the run's ids
    corpus = Corpus([make_chunk(OTHER, "7", "d1"), make_chunk(PASSAGE, "2", "d2")])
    assert cause(path, corpus) is cause(path) is Cause.NOT_USED


def test_a_text_with_an_id_of_the_corpus_is_of_the_document_there(tmp_path: Path) -> None:
    chunks = [make_chunk(PASSAGE, "d1-0", "d1"), make_chunk(OTHER, "d2-0", "d2")]

    def judged(*names: str) -> Cause | None:
        contents = {"d1-0": PASSAGE, "d2-0": "Almanac\nThe market"}
        passages = [{"id": name, "contents": contents[name]} for name in names]
        row = BASE | {"pred": "Rome", "retrievals": [{"query": "q", "passages": passages}]}
        row |= {"metadata": {"supporting_doc_ids": ["d2"]}}
        return cause(write(tmp_path / "run.jsonl", row), Corpus(chunks))

    assert judged("d1-0", "d2-0") is Cause.NOT_USED
    # The answer would be found in it
    assert judged("d1-0") is Cause.NOT_FOUND


def test_texts_that_belong_to_no_search_are_not_those_of_a_search_that_found_nothing(
    tmp_path: Path,
) -> None:
    question = make_question("q1", supporting_doc_ids=["d2"])
    searches = [("a", []), ("b", [("c1", OTHER)]), ("c", [("c2", PASSAGE)])]
    rollout = make_rollout(question, "Rome", searches)
    cut = rollout.messages[4].model_copy(update={"content": "No room left. Answer now."})
    messages = (*rollout.messages[:4], cut, *rollout.messages[5:])
    write_jsonl(tmp_path / "run.jsonl", [rollout.model_copy(update={"messages": messages})])
    run = read_run(tmp_path / "run.jsonl")
    [answer] = run.answers
    assert [len(search.passages) for search in answer.searches or ()] == [0, 1, 0]
    chunks = [make_chunk(OTHER, "c1", "d1"), make_chunk(PASSAGE, "c2", "d2")]
    [judged] = judge_run(run, {"q1": question}, Corpus(chunks), top_k=1).answers
    assert [len(items) for items in judged.by_search or ()] == [0, 0, 1]


def test_trajectories_without_a_corpus_are_judged_by_the_passages_that_they_show(
    tmp_path: Path,
) -> None:
    question = make_question("q1", evidence_list=EVIDENCE)
    rollouts = [
        make_rollout(question, "Rome", [("a", [("c1", OTHER)]), ("b", [("c2", PASSAGE)])]),
        make_rollout(question, "Rome", [("a", [("c1", OTHER)]), ("b", [])], sample=1),
    ]
    write_jsonl(tmp_path / "run.jsonl", rollouts)
    run = read_run(tmp_path / "run.jsonl")
    assert run.top_k == 1
    assert run.samples == 2
    judged = judge_run(run, {"q1": question}, None, top_k=1)
    assert [answer.cause for answer in judged.answers] == [Cause.NOT_USED, Cause.NOT_FOUND]
    assert [len(items) for items in judged.answers[0].by_search or ()] == [0, 1]


def test_passages_of_the_tag_protocol_end_their_title_at_the_bracket_that_closes_it(
    tmp_path: Path,
) -> None:
    question = make_question("q1", supporting_titles=("Acme (film)",))
    rollout = make_rollout(question, "Rome", [("a", [("c1", OTHER)])])
    tool = rollout.messages[2].model_copy(
        update={
            "content": "\n\n<information>Doc 1(Title: Almanac) Wide.\n"
            "Doc 2(Title: Acme (film)) A film (1990).</information>\n\n"
        }
    )
    messages = (*rollout.messages[:2], tool, rollout.messages[3])
    write_jsonl(tmp_path / "run.jsonl", [rollout.model_copy(update={"messages": messages})])
    judged = judge_run(read_run(tmp_path / "run.jsonl"), {"q1": question}, None, top_k=2)
    assert judged.answers[0].cause is Cause.NOT_USED


def test_runs_that_do_not_fit_are_refused_with_file_line_and_field(tmp_path: Path) -> None:
    row = BASE | {"pred": "Rome"}
    path = write(tmp_path / "run.jsonl", row, row)
    with pytest.raises(RecordError, match=r"run.jsonl, line 2: field 'id': 'q1' is answered twice"):
        read_run(path)
    write(path, row, row | {"sample": 1, "golden_answers": ["Paris"]})
    with pytest.raises(RecordError, match="line 2: field 'golden_answers'"):
        read_run(path)
    write(path, row | {"retrievals": [{"query": "q", "passages": [3]}]})
    with pytest.raises(RecordError, match="line 1: field 'retrievals"):
        read_run(path)
    path.write_text("")
    with pytest.raises(ArtifactError, match="holds no answers"):
        read_run(path)
    with pytest.raises(ArtifactError, match="does not exist"):
        read_run(tmp_path / "no.jsonl")


def test_a_run_of_other_questions_than_the_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", BASE | {"pred": "Rome"})
    with pytest.raises(ArtifactError, match=r"answers 1 questions that are not .* \(q1\)"):
        judge_run(read_run(path), {"q2": make_question("q2")}, None, top_k=3)


def test_a_question_file_of_another_set_with_the_same_ids_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", BASE | {"pred": "Rome"})
    other = make_question("q1", "Where is the market?")
    with pytest.raises(ArtifactError, match="they are of different sets, or splits"):
        judge_run(read_run(path), {"q1": other}, None, top_k=3)

    # A row without the question's text cannot say that
    row = {name: value for name, value in BASE.items() if name != "question"}
    run = read_run(write(tmp_path / "run.jsonl", row | {"pred": "Rome"}))
    assert judge_run(run, {"q1": other}, None, top_k=3).answers


def test_causes_are_judged_by_the_golden_answers_that_the_score_is_of(tmp_path: Path) -> None:
    row = BASE | {"pred": "It was Ada Byron", "golden_answers": ["Ada Byron"], "retrievals": []}
    run = read_run(write(tmp_path / "run.jsonl", row))
    question = make_question("q1", BASE["question"], ("Ada Stone",))
    [answer] = judge_run(run, {"q1": question}, None, top_k=3).answers
    assert answer.cause is Cause.METRIC
