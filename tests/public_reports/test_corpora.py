"""Corpora, questions and results as people have them: the inputs of public reports, and what becomes of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.corpora import flashrag, flashrag_sets, graphrag_bench
from deepsearch_rl.errors import RecordError
from deepsearch_rl.evaluation.scoring.predictions import score_predictions
from deepsearch_rl.records import Chunk, Document, Question
from deepsearch_rl.retrieval.gold import gold_evidence
from deepsearch_rl.retrieval.rows import read_chunks

Line = dict[str, Any]
NAN = float("nan")
ABSENT = object()
QUESTION = {"id": "q", "question": "Who?", "golden_answers": ["x"]}
DOCUMENT = {"id": "a", "contents": "Water\nIt is wet."}


def write(path: Path, *lines: Line) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def documents(path: Path, *lines: Line) -> list[Document]:
    return list(flashrag.read_documents(write(path / "corpus.jsonl", *lines)))


def chunks(path: Path, *lines: Line) -> list[Chunk]:
    return [chunk for _, _, chunk in read_chunks(write(path / "corpus.jsonl", *lines))]


def questions(path: Path, *lines: Line) -> list[Question]:
    return list(flashrag.read_questions(write(path / "questions.jsonl", *lines)))


def without(row: Line, key: str, value: object) -> Line:
    """A row with another value, or with none."""
    rest = {name: each for name, each in row.items() if name != key}
    return rest if value is ABSENT else rest | {key: value}


# --- One rule for text (cclib#318, muutils#65, hotpot#50) ---

MISSING = [ABSENT, None, NAN, ""]
NO_TEXT = [7, 1.5, True, ["x"], {"x": 1}]
TITLED = {"id": "a", "title": "T", "text": "It is wet."}
READERS: dict[str, tuple[Callable[[Path], object], Line, str]] = {
    "corpus": (lambda path: list(flashrag.read_documents(path)), TITLED, "title"),
    "corpus's text": (lambda path: list(flashrag.read_documents(path)), TITLED, "text"),
    "index": (lambda path: list(read_chunks(path)), TITLED, "title"),
    "contents": (lambda path: list(read_chunks(path)), DOCUMENT, "contents"),
    "questions": (lambda path: list(flashrag.read_questions(path)), QUESTION, "question"),
    "HotpotQA": (lambda path: list(flashrag_sets.read_hotpotqa(path)), QUESTION, "question"),
    "MuSiQue": (lambda path: list(flashrag_sets.read_musique(path)), QUESTION, "question"),
    "GraphRAG-Bench": (
        lambda path: list(graphrag_bench.read_documents(path)), {"corpus_name": "c", "context": "x"}, "context"
    ),
    "predictions": (score_predictions, QUESTION | {"pred": "x"}, "question"),
}  # fmt: skip


@pytest.mark.parametrize("value", NO_TEXT, ids=repr)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_text_is_an_error_with_its_place_in_every_reader(tmp_path: Path, reader: str, value: object) -> None:
    read, row, field = READERS[reader]
    with pytest.raises(RecordError) as caught:
        read(write(tmp_path / "rows.jsonl", row | {field: value}))
    assert (caught.value.line, caught.value.field) == (1, field)


@pytest.mark.parametrize("value", [None, NAN, ""], ids=repr)
@pytest.mark.parametrize("reader", ["contents", "questions", "HotpotQA", "MuSiQue", "GraphRAG-Bench"])
def test_every_missing_value_of_a_text_that_must_be_there_is_refused(
    tmp_path: Path, reader: str, value: object
) -> None:
    read, row, field = READERS[reader]
    with pytest.raises(RecordError) as caught:
        read(write(tmp_path / "rows.jsonl", row | {field: value}))
    assert caught.value.line == 1


@pytest.mark.parametrize("value", MISSING, ids=["absent", "null", "NaN", "empty"])
def test_every_missing_title_is_no_title(tmp_path: Path, value: object) -> None:
    """muutils#65: `"title": NaN` is the text "nan" for none of the readers."""
    line = without(TITLED, "title", value)
    [document], [chunk] = documents(tmp_path, line), chunks(tmp_path, line)
    assert (document.title, document.text, document.metadata) == ("", "It is wet.", {})
    assert (chunk.title, chunk.text) == ("", "It is wet.")


@pytest.mark.parametrize("value", MISSING, ids=["absent", "null", "NaN", "empty"])
def test_every_missing_type_of_a_question_is_no_type(tmp_path: Path, value: object) -> None:
    line = QUESTION | {"metadata": without({}, "question_type", value)}
    [question] = questions(tmp_path, line)
    assert question.metadata.question_type == ""


@pytest.mark.parametrize("key", ["supporting_titles", "supporting_doc_ids"])
@pytest.mark.parametrize("item", [["Water", 0], {"title": "Water"}, None, ""], ids=repr)
def test_gold_that_is_no_list_of_texts_is_named(tmp_path: Path, key: str, item: object) -> None:
    """hotpot#50: `[["Water", 0]]` becomes no title that nothing can match."""
    with pytest.raises(RecordError) as caught:
        questions(tmp_path, QUESTION | {"metadata": {key: ["Ice", item]}})
    assert (caught.value.line, caught.value.field) == (1, f"metadata.{key}.1")


def test_whole_numbers_are_taken_as_ids_and_nothing_else_that_is_no_text(tmp_path: Path) -> None:
    [document] = documents(tmp_path, DOCUMENT | {"id": 7})
    [question] = questions(tmp_path, QUESTION | {"id": 7, "supporting_doc_ids": [7]})
    gold = gold_evidence(question)
    assert (document.id, question.id, gold and gold.items) == ("7", "7", ("7",))
    for id_ in (7.0, NAN, True, ["7"], None, ""):
        for read in (documents, questions):
            with pytest.raises(RecordError) as caught:
                read(tmp_path, (DOCUMENT if read is documents else QUESTION) | {"id": id_})
            assert caught.value.field == "id"
