"""Rows of corpora and questions: missing values, keys, titles, and what an error says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.core.errors import RecordError
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.records import Chunk, Document, Question
from deepsearch_rl.data import flashrag, question_sets
from deepsearch_rl.data.chunking import (
    ChunkConfig,
    Cutting,
    chunk_corpora,
    cut_documents,
)
from deepsearch_rl.data.sentences import word_spans
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.data.token_counts import WordCounter
from deepsearch_rl.evaluate.predictions import score_predictions
from deepsearch_rl.search.gold import gold_evidence
from deepsearch_rl.search.rows import read_chunks, write_rows

Line = dict[str, Any]


NAN = float("nan")


ABSENT = object()


QUESTION = {"id": "q", "question": "Who?", "golden_answers": ["x"]}


DOCUMENT = {"id": "a", "contents": "Water\nIt is wet."}


def write(path: Path, *lines: Line) -> Path:
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
    )
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


MISSING = [ABSENT, None, NAN, ""]


NO_TEXT = [7, 1.5, True, ["x"], {"x": 1}]


TITLED = {"id": "a", "title": "T", "text": "It is wet."}


READERS: dict[str, tuple[Callable[[Path], object], Line, str]] = {
    "corpus": (lambda path: list(flashrag.read_documents(path)), TITLED, "title"),
    "corpus's text": (lambda path: list(flashrag.read_documents(path)), TITLED, "text"),
    "index": (lambda path: list(read_chunks(path)), TITLED, "title"),
    "contents": (lambda path: list(read_chunks(path)), DOCUMENT, "contents"),
    "questions": (lambda path: list(flashrag.read_questions(path)), QUESTION, "question"),
    "HotpotQA": (lambda path: list(question_sets.read_hotpotqa(path)), QUESTION, "question"),
    "MuSiQue": (lambda path: list(question_sets.read_musique(path)), QUESTION, "question"),
    "GraphRAG-Bench": (
        lambda path: list(question_sets.read_graphrag_corpus(path)), {"corpus_name": "c", "context": "x"}, "context"
    ),
    "predictions": (score_predictions, QUESTION | {"pred": "x"}, "question"),
}  # fmt: skip


@pytest.mark.parametrize("value", NO_TEXT, ids=repr)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_text_is_an_error_with_its_place_in_every_reader(
    tmp_path: Path, reader: str, value: object
) -> None:
    read, row, field = READERS[reader]
    with pytest.raises(RecordError) as caught:
        read(write(tmp_path / "rows.jsonl", row | {field: value}))
    assert (caught.value.line, caught.value.field) == (1, field)


@pytest.mark.parametrize("value", [None, NAN, ""], ids=repr)
@pytest.mark.parametrize(
    "reader", ["contents", "questions", "HotpotQA", "MuSiQue", "GraphRAG-Bench"]
)
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


@pytest.mark.parametrize(
    ("title", "contents", "expected"),
    [
        ("Water", "It is wet.", "Water\nIt is wet."),
        ("Water", "Water\nIt is wet.", "Water\nIt is wet."),
        ("Water", '"water"\nIt is wet.', '"water"\nIt is wet.'),
        ("Art", "Artists paint.", "Art\nArtists paint."),
        ("Water\nIce", "It is wet.", "Water Ice\nIt is wet."),
        (None, "It is wet.", "It is wet."),
    ],
)
def test_a_title_beside_contents_is_put_before_contents_that_do_not_begin_with_it(
    tmp_path: Path, title: str | None, contents: str, expected: str
) -> None:
    line = {"id": "a", "title": title, "contents": contents}
    [document], [chunk] = documents(tmp_path, line), chunks(tmp_path, line)
    assert document.contents == chunk.contents == expected


def test_keys_that_the_format_does_not_need_are_metadata_under_their_own_names(
    tmp_path: Path,
) -> None:
    keys: Line = {
        "_id": 3,
        "self": 1,
        "doc_id": "d",
        "author": ["A"],
        "copy": {"x": None},
        "id_": "b",
    }
    [beside] = documents(tmp_path, DOCUMENT | keys)
    [below] = documents(tmp_path, DOCUMENT | {"metadata": keys})
    assert beside.metadata == below.metadata == keys
    [question] = questions(tmp_path, QUESTION | keys)
    assert question.metadata.model_extra == keys


def test_what_the_format_needs_is_never_taken_from_metadata(tmp_path: Path) -> None:
    metadata = {
        "id": "m",
        "contents": "No",
        "title": "M",
        "text": "no",
        "question": "No?",
        "golden_answers": ["n"],
    }
    [document] = documents(tmp_path, {"id": "a", "text": "It is wet.", "metadata": metadata})
    [question] = questions(tmp_path, QUESTION | {"metadata": metadata})
    assert (document.id, document.title, document.text, document.metadata) == (
        "a",
        "",
        "It is wet.",
        metadata,
    )
    assert (question.id, question.question, question.metadata.model_extra) == (
        "q",
        "Who?",
        metadata,
    )
    with pytest.raises(RecordError, match="field 'id'"):
        documents(tmp_path, {"contents": "T\nx", "metadata": metadata})


@pytest.mark.parametrize("metadata", ["a note", ["x"], 7])
def test_metadata_that_is_no_object_is_kept_under_its_name(
    tmp_path: Path, metadata: object
) -> None:
    [document] = documents(tmp_path, DOCUMENT | {"metadata": metadata})
    assert document.metadata == {"metadata": metadata}


def test_a_key_with_two_values_is_named_because_one_would_be_lost(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError,
        match=r"line 1: 'source' has one value in metadata and another beside it",
    ):
        documents(tmp_path, DOCUMENT | {"source": "A", "metadata": {"source": "B"}})
    [document] = documents(
        tmp_path, DOCUMENT | {"source": "A", "metadata": {"source": "A", "x": None}}
    )
    assert document.metadata == {"source": "A"}


def test_metadata_under_a_name_that_chunks_need_is_kept_and_the_chunk_keeps_its_own(
    tmp_path: Path,
) -> None:
    line = DOCUMENT | {"doc_id": "d7", "doc_chunk_id": "third", "source": "S"}
    config = ChunkConfig(
        chunker="sentences", chunk_size=9, overlap=0, tokenizer="words", passages=(), variants={}
    )
    (tmp_path / "corpora").mkdir()
    write_jsonl(tmp_path / "corpora" / "c.jsonl", documents(tmp_path, line))
    chunk_corpora(tmp_path / "corpora", tmp_path / "chunks", config)
    [indexed] = chunks(tmp_path, line)
    [cut] = read_jsonl(tmp_path / "chunks" / "c.jsonl", Chunk)
    for chunk in (indexed, cut):
        assert (chunk.metadata.doc_id, chunk.metadata.doc_chunk_id) == ("a", 0)
        assert chunk.metadata.model_extra == {
            "source": "S", "document_metadata": {"doc_id": "d7", "doc_chunk_id": "third"},
        }  # fmt: skip


LONG_LINE = (
    "Evan Morris Evan L. Morris was a lobbyist for Genentech. "
    + "He knew many people in the city. " * 40
)


@pytest.mark.parametrize(
    "contents", [LONG_LINE, f"{LONG_LINE}\nMore.", "\u6c34" * 200], ids=["one", "two", "CJK"]
)
def test_a_line_longer_than_a_title_can_be_is_text_and_is_cut(
    tmp_path: Path, contents: str
) -> None:
    [document] = documents(tmp_path, {"id": "0", "contents": contents})
    [chunk] = chunks(tmp_path, {"id": "0", "contents": contents})
    assert (document.title, document.text) == (chunk.title, chunk.text) == ("", contents)
    cutting = Cutting(chunker="sentences", chunk_size=20, overlap=0)
    cut = list(cut_documents([document], WordCounter(), cutting))
    assert all(sum(1 for _ in word_spans(chunk.contents)) <= 20 for chunk in cut)
    assert {chunk.title for chunk in cut} == {""}
    assert "".join("".join(chunk.text.split()) for chunk in cut) == "".join(contents.split())


def test_a_short_first_line_stays_the_title_and_long_documents_are_found_by_the_title_that_they_have(
    tmp_path: Path,
) -> None:
    gold = gold_evidence(questions(tmp_path, QUESTION | {"supporting_titles": ["Evan Morris"]})[0])
    assert gold is not None
    for line in (
        {"contents": f"Evan Morris\n{LONG_LINE}"},
        {"contents": LONG_LINE, "title": "Evan Morris"},
        {"contents": LONG_LINE, "metadata": {"title": "Evan Morris"}},
        {"text": LONG_LINE, "title": "Evan Morris"},
    ):
        [chunk] = chunks(tmp_path, {"id": "0", **line})
        assert gold.found_in(chunk) == {0}
    assert documents(tmp_path, {"id": "0", "contents": "Evan Morris"})[0].title == "Evan Morris"


@pytest.mark.parametrize(
    ("gold_title", "title"),
    [
        ("Ed Wood (film)", "ed wood (Film)"),
        ("Ed Wood (film)", "Ed_Wood_(film)"),
        ("Xawery \u017bu\u0142awski", "Xawery Z\u0307u\u0142awski"),
        ("The Verge", "\uff34\uff48\uff45 Verge"),
        ("Earth, Wind & Fire", "Earth, Wind &amp; Fire"),
        ("Earth, Wind & Fire", "Earth, Wind &amp;amp; Fire"),
        ('"Weird Al" Yankovic', '"""Weird Al"" Yankovic"'),
        ('"Weird Al" Yankovic', "\u201cWeird Al\u201d Yankovic"),
        ('"Weird Al" Yankovic', '\\"Weird Al\\" Yankovic'),
        ("Ocean's Eleven", "Ocean\u2019s Eleven"),
        ("Zo\u00eb", "Zo%C3%AB"),
        ("Zo\u00eb", "Zo\\u00eb"),
        ("2008\u201310 crisis", "2008-10 crisis"),
        ("New York", "New  York\u00a0"),
        ("New York", "\ufeffNew\u200b York\u200e"),
        ("New York", "New\\nYork"),
        ("1/2 Man", "\u00bd Man"),
    ],
)
def test_a_title_in_another_spelling_is_the_same_title(
    tmp_path: Path, gold_title: str, title: str
) -> None:
    [question] = questions(tmp_path, QUESTION | {"supporting_titles": ["Ice", gold_title]})
    gold = gold_evidence(question)
    [chunk] = chunks(tmp_path, {"id": "0", "title": title, "text": "x"})
    assert gold is not None
    assert gold.items == ("Ice", gold_title)
    assert gold.found_in(chunk) == {1}


@pytest.mark.parametrize(
    "pair",
    [("R\u00e9sum\u00e9", "Resume"), ("100% Love", "100 Love"), ("A", "A (film)"), ("C", "C++")],
)
def test_other_titles_stay_other_titles(pair: tuple[str, str]) -> None:
    assert title_key(pair[0]) != title_key(pair[1])


def test_a_title_without_letters_matches_no_untitled_passage(tmp_path: Path) -> None:
    assert gold_evidence(questions(tmp_path, QUESTION | {"supporting_titles": ['""']})[0]) is None


ROWS = [
    {"id": "1", "text": 'Aaron, a "prophet"\nand priest', "title": "Aaron"},
    {"id": "2", "text": "\u6c34 is wet", "title": ""},
]


JSON_LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            [DOCUMENT, DOCUMENT | {"contents": "Ice\nx"}],
            r"line 2: field 'id': 'a' is the id of line 1",
        ),
        ([DOCUMENT, {"id": "b", "contents": ""}], "line 2: "),
        ([DOCUMENT, {"id": "b", "contents": " \n "}], "line 2: .*neither a title nor a text"),
    ],
    ids=["one id twice", "empty", "blank"],
)
def test_repeated_ids_and_empty_documents_are_judged_alike_by_build_and_by_the_stage_chunk(
    tmp_path: Path, lines: list[Line], words: str
) -> None:
    (tmp_path / "corpora").mkdir()
    path = write(tmp_path / "corpora" / "c.jsonl", *lines)
    config = ChunkConfig(
        chunker="sentences", chunk_size=9, overlap=0, tokenizer="words", passages=(), variants={}
    )
    with pytest.raises(RecordError, match=words):
        write_rows(path, tmp_path / "rows")
    with pytest.raises(RecordError, match=words):
        chunk_corpora(tmp_path / "corpora", tmp_path / "chunks", config)


def test_a_document_that_is_a_title_alone_is_one_passage_of_both(tmp_path: Path) -> None:
    for line in (
        {"contents": "Water"},
        {"title": "Water", "text": ""},
        {"title": "Water", "text": None},
    ):
        [document], [chunk] = (
            documents(tmp_path, {"id": "a", **line}),
            chunks(tmp_path, {"id": "a", **line}),
        )
        cutting = Cutting(chunker="sentences", chunk_size=9, overlap=0)
        [cut] = cut_documents([document], WordCounter(), cutting)
        assert document.title == chunk.title == cut.title == "Water"


SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


SELECTED = {"search-r1": set(SETS), "verl": {f"searchR1_{name}" for name in SETS}}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"docid": "1", "title": "T", "text": "x"},
            ["field 'id'", "docid, title, text", "rename the key"],
        ),  # MS MARCO
        ({"id": "1", "content": "x"}, ["'contents' nor 'text'", "id, content"]),
        ({"id": "1", "passage": "x", "title": "T"}, ["id, passage, title"]),
    ],
)
def test_a_document_without_a_needed_key_is_refused_with_the_keys_that_it_has(
    tmp_path: Path, row: Line, words: list[str]
) -> None:
    with pytest.raises(RecordError, match="line 1") as caught:
        documents(tmp_path, row)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    "answers", [["a"], {"text": ["a"], "answer_start": [1]}], ids=["DPR", "SQuAD"]
)
def test_a_question_without_answers_is_refused_with_the_keys_that_it_has(
    tmp_path: Path, answers: object
) -> None:
    with pytest.raises(RecordError, match=r"field 'golden_answers'.*id, question, answers"):
        questions(tmp_path, {"id": "1", "question": "Q?", "answers": answers})


@pytest.mark.parametrize("key", ["text", "contents"])
def test_a_passage_that_is_a_list_of_texts_is_refused_with_how_to_join_it(
    tmp_path: Path, key: str
) -> None:
    row = {"id": "1", "title": "T", key: ["First para. ", "Second."]}
    advice = rf"'{key}': .*list of texts; join them.*\.{key} \|= join"
    for read in (documents, chunks):
        with pytest.raises(RecordError, match=advice):
            read(tmp_path, row)
