"""Corpora, questions and results as people have them: the inputs of public reports, and what becomes of them."""

import bz2
import gzip
import importlib
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.errors import ArtifactError, ConfigError, RecordError
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.records import Chunk, Document, Question, StopReason, Trajectory
from deepsearch_rl.data import flashrag, flashrag_sets, graphrag_bench, json_array, layouts
from deepsearch_rl.data.catalogue import CORPUS_FORMATS, QUESTION_FORMATS
from deepsearch_rl.data.chunking import (
    ChunkConfig,
    Cutting,
    chunk_corpora,
    cut_documents,
)
from deepsearch_rl.data.spans import word_spans
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.data.token_counts import WordCounter
from deepsearch_rl.evaluate.ifeval import read_prompts
from deepsearch_rl.evaluate.imported_results import import_results
from deepsearch_rl.evaluate.predictions import score_predictions
from deepsearch_rl.evaluate.trajectory_statistics import read_statistics
from deepsearch_rl.search.build import IndexSection, build_index
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


# --- Keys of a line, and a title beside contents (pyserini#242, castorini/eval#26) ---


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
        match=r"line 1: 'source' stands beside metadata and in it with different values",
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


# --- A document of one line (PeterGriffinJin/Search-R1#74 and its README) ---

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


# --- Titles are compared as titles ---


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


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index over two passages."""
    lines = [
        {"id": "1", "title": "Ed Wood", "text": "A film of 1994."},
        {"id": "2", "title": "Water", "text": "Wet."},
    ]
    write(tmp_path / "passages.jsonl", *lines)
    settings = load_preset("retrieve").with_overrides({"index.encoder.dimension": 2})
    config = settings.section("index", IndexSection).of("")
    build_index(tmp_path / "passages.jsonl", tmp_path / "index", config, 0)
    return tmp_path / "index"


def run(*arguments: object) -> str:
    """What a command prints."""
    result = CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


BM25_ALONE = ("--stored-weights", "--draws", 0, "--retriever", "bm25")
"""Options of `retrieve eval`."""


def measured(index: Path, questions: Path) -> dict[str, Any]:
    """Return what `retrieve eval` says of BM25 on questions."""
    files = ("--index", index, "--questions", questions)
    return json.loads(run("retrieve", "eval", *BM25_ALONE, *files, "--json"))


def test_gold_that_the_corpus_does_not_have_is_counted_and_listed_with_the_nearest(
    tmp_path: Path, index: Path
) -> None:
    """A score of zero because of a title that is spelled too differently is not silent."""
    lines = [
        QUESTION | {"id": "1", "supporting_titles": ["ed_wood", "Waters"]},
        QUESTION | {"id": "2", "supporting_doc_ids": [2, "9"]},
        QUESTION | {"id": "3", "supporting_titles": ["Somebody Else"]},
    ]
    path = write(tmp_path / "q.jsonl", *lines)
    missing = measured(index, path)["missing_gold"]
    assert (missing["documents"], missing["missing"]) == (5, 3)
    assert [(each["name"], each["nearest"]) for each in missing["listed"]] == [
        ("Waters", "Water"), ("Somebody Else", None), ("9", None),
    ]  # fmt: skip
    printed = run("retrieve", "eval", *BM25_ALONE, "--index", index, "--questions", path)
    assert "3 of 5 gold documents are not in the corpus: 'Waters' (nearest: 'Water')" in printed


# --- Official files, FlashRAG's question files, training rows ---

HOTPOT = {
    "_id": "5a8b57f2", "answer": "yes", "question": "Were both American?", "type": "comparison", "level": "hard",
    "supporting_facts": [["Scott Derrickson", 0], ["Ed Wood", 0]],
    "context": [["Ed Wood", ["He was American.", " He made films."]], ["Scott Derrickson", ["He is American."]]],
}  # fmt: skip
WIKI = HOTPOT | {
    "evidences": [["Ed Wood", "country", "US"]],
    "answer": "no",
    "type": "bridge_comparison",
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Who is the spouse of the Green performer?",
    "answer": "Miquette Giraudy",
    "answer_aliases": ["M. Giraudy"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Blue", "paragraph_text": "A colour.", "is_supporting": False},
        {
            "idx": 1,
            "title": "Green (album)",
            "paragraph_text": "By Steve Hillage.",
            "is_supporting": True,
        },
        {
            "idx": 2,
            "title": "Miquette Giraudy",
            "paragraph_text": "She married him.",
            "is_supporting": True,
        },
    ],
    "question_decomposition": [
        {
            "id": 1,
            "question": "Green >> performer",
            "answer": "Steve Hillage",
            "paragraph_support_idx": 1,
        },
        {
            "id": 2,
            "question": "#1 >> spouse",
            "answer": "Miquette Giraudy",
            "paragraph_support_idx": 2,
        },
    ],
}


@pytest.mark.parametrize(
    ("set_", "row"),
    [("hotpotqa", HOTPOT), ("2wikimultihopqa", WIKI)],
    ids=["HotpotQA", "2WikiMultihopQA"],
)
def test_official_files_of_hotpotqa_and_2wiki_are_read_with_answer_gold_and_paragraphs(
    tmp_path: Path, set_: str, row: Line
) -> None:
    path = tmp_path / "dev.json"
    path.write_text(json.dumps([row], indent=1))  # one JSON array over many lines
    [question] = QUESTION_FORMATS[set_](path)
    assert (question.id, question.golden_answers) == ("5a8b57f2", (row["answer"],))
    assert question.metadata.question_type == row["type"]
    assert question.metadata.supporting_titles == ("Scott Derrickson", "Ed Wood")
    paragraphs = [document.contents for document in CORPUS_FORMATS[f"{set_}_paragraphs"](path)]
    assert paragraphs == [
        "Ed Wood\nHe was American. He made films.",
        "Scott Derrickson\nHe is American.",
    ]


@pytest.mark.parametrize(
    "change",
    [{}, {"golden_answers": ["Miquette Giraudy", "M. Giraudy"]}],
    ids=["official", "with golden answers"],
)
def test_official_musique_files_keep_their_gold(tmp_path: Path, change: Line) -> None:
    path = write(tmp_path / "musique_ans_v1.0_dev.jsonl", MUSIQUE | change)
    [question] = QUESTION_FORMATS["musique"](path)
    assert question.golden_answers == ("Miquette Giraudy", "M. Giraudy")
    assert question.metadata.question_type == "2_hop"
    assert question.metadata.supporting_titles == ("Green (album)", "Miquette Giraudy")
    titles = [document.title for document in CORPUS_FORMATS["musique_paragraphs"](path)]
    assert titles == ["Blue", "Green (album)", "Miquette Giraudy"]


def test_an_unanswerable_question_of_musique_full_has_no_evidence_and_the_answer_of_such_questions(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "full.jsonl",
        MUSIQUE,
        MUSIQUE | {"answerable": False, "answer": "Miquette Giraudy"},
    )
    answerable, unanswerable = QUESTION_FORMATS["musique"](path)
    assert answerable.id != unanswerable.id
    assert unanswerable.golden_answers == (INSUFFICIENT,)
    assert unanswerable.metadata.evidence_list == ()
    assert gold_evidence(unanswerable) is None


FLASHRAG = {
    "id": 7, "question": "Who made Ed Wood?", "golden_answers": ["Tim Burton"], "split": "dev", "level": "hard",
    "metadata": {"supporting_titles": ["Ed Wood"], "self": 1},
}  # fmt: skip
SEARCH_R1 = {
    "data_source": "nq",
    "prompt": [
        {"role": "user", "content": "Answer the given question. \\Question: Who made Ed Wood?\n"}
    ],
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["Tim Burton"]}},
    "extra_info": {"split": "train", "index": 7},
}
VERL = SEARCH_R1 | {
    "data_source": "searchR1_nq",
    "prompt": [
        {"role": "system", "content": "Search."},
        {"role": "user", "content": "Question: Who made Ed Wood?"},
    ],
    "extra_info": {
        "split": "train",
        "index": 7,
        "question": "Who made Ed Wood?",
        "need_tools_kwargs": True,
    },
}


def test_flashrags_question_files_are_taken_wherever_questions_are(
    tmp_path: Path, index: Path
) -> None:
    """Extra keys, whole numbers as ids and gzip, in conversions, measurements and builds."""
    path = tmp_path / "dev.jsonl.gz"
    with gzip.open(path, "wt") as lines:
        lines.writelines(json.dumps(FLASHRAG | {"id": number}) + "\n" for number in range(6))
    run("trajectories", "convert", path, tmp_path / "out.jsonl", "--to", "rlinf")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 6
    scores = measured(index, path)
    assert (scores["questions"], scores["scores"]["bm25"]["mrr@10"]["mean"]) == (6, 1.0)
    passages = index.with_name("passages.jsonl")
    built = run(
        "retrieve", "build", "--corpus", passages, "--out", tmp_path / "new", "--questions", path
    )
    assert "2 passages" in built


@pytest.mark.parametrize("row", [SEARCH_R1, VERL], ids=["Search-R1", "veRL"])
def test_training_rows_of_search_r1_and_verl_are_questions(tmp_path: Path, row: Line) -> None:
    rows = [row, row | {"extra_info": row["extra_info"] | {"index": 8}}]
    pd.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    first, second = flashrag.read_questions(tmp_path / "train.parquet")
    assert (first.question, first.golden_answers) == ("Who made Ed Wood?", ("Tim Burton",))
    assert (first.id, second.id) == (
        f"{row['data_source']}_train_7",
        f"{row['data_source']}_train_8",
    )
    assert first.metadata.model_extra == {
        "data_source": row["data_source"],
        "ability": "fact-reasoning",
    }


def test_our_own_rows_for_search_r1_come_back_as_the_questions_that_they_were(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "q.jsonl",
        QUESTION | {"question": "Who? Question: what?"},
        QUESTION | {"id": "r"},
    )
    for to in ("search-r1", "verl"):
        run(
            "trajectories",
            "convert",
            path,
            tmp_path / f"{to}.parquet",
            "--to",
            to,
            "--dataset",
            "nq",
        )
    [_, second] = flashrag.read_questions(tmp_path / "search-r1.parquet")
    first, _ = flashrag.read_questions(tmp_path / "verl.parquet")
    assert (first.question, second.question, second.golden_answers) == (
        "Who? Question: what?",
        "Who?",
        ("x",),
    )


@pytest.mark.parametrize(
    "row", [HOTPOT | {"answer": None}, SEARCH_R1 | {"reward_model": None}], ids=["test", "none"]
)
def test_a_question_without_an_answer_is_named(tmp_path: Path, row: Line) -> None:
    with pytest.raises(RecordError, match=r"line 1: field 'golden_answers'"):
        questions(tmp_path, row)


# --- Layouts (pyserini#331, pyserini#1902, beir#78, anserini#961, datasets#8241) ---

ROWS = [
    {"id": "1", "text": 'Aaron, a "prophet"\nand priest', "title": "Aaron"},
    {"id": "2", "text": "\u6c34 is wet", "title": ""},
]
JSON_LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
TSV = 'id\ttext\ttitle\n1\t"Aaron, a ""prophet""\nand priest"\tAaron\n2\t\u6c34 is wet\t\n'
CSV = TSV.replace("\t", ",")
BOM = b"\xef\xbb\xbf"


def tarred(data: bytes, mode: Literal["w", "w:gz"]) -> bytes:
    """An archive of one file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        member = tarfile.TarInfo("corpus.jsonl")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def zipped(*names: str) -> bytes:
    """An archive of files that all hold the rows."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, JSON_LINES)
    return out.getvalue()


def arrow(open_writer: Callable[..., Any]) -> bytes:
    out = io.BytesIO()
    table = pa.Table.from_pylist(ROWS)
    with open_writer(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def parquet(compression: str) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), out, compression=compression)
    return out.getvalue()


LAYOUTS = {
    "lines": ("c.jsonl", JSON_LINES.encode()),
    "lines of any name": ("c.txt", b"\n \n" + JSON_LINES.encode().rstrip()),
    "lines with a byte order mark": ("c.jsonl", BOM + JSON_LINES.encode()),
    "BEIR": ("c.jsonl", JSON_LINES.replace('"id"', '"_id"').encode()),
    "array": ("c.json", json.dumps(ROWS).encode()),
    "indented array with a byte order mark": (
        "c.json",
        BOM + json.dumps(ROWS, indent=2).encode() + b"\n",
    ),
    "DPR's table": ("psgs_w100.tsv", TSV.encode()),
    "table of Windows": ("c.csv", BOM + CSV.replace("\n2", "\r\n2").encode()),
    "table of any name": ("c.txt", CSV.encode()),
    "Parquet": ("c.parquet", parquet("snappy")),
    "Parquet of any name": ("c.data", parquet("zstd")),
    "Arrow stream": ("c.arrow", arrow(pa.ipc.new_stream)),
    "Arrow file": ("c.arrow", arrow(pa.ipc.new_file)),
    "gzip": ("c.jsonl.gz", gzip.compress(JSON_LINES.encode(), mtime=0)),
    "gzip of any name": ("c.jsonl", gzip.compress(JSON_LINES.encode(), mtime=0)),
    "gzipped table": ("psgs_w100.tsv.gz", gzip.compress(TSV.encode(), mtime=0)),
    "gzipped array": ("c.json.gz", gzip.compress(json.dumps(ROWS).encode(), mtime=0)),
    "bzip2": ("c.jsonl.bz2", bz2.compress(JSON_LINES.encode())),
    "xz": ("c.jsonl.xz", lzma.compress(JSON_LINES.encode())),
    "zip": ("c.zip", zipped("corpus.jsonl", "__MACOSX/._corpus.jsonl")),
    "tar": ("c.tar", tarred(JSON_LINES.encode(), "w")),
    "gzipped tar": ("c.tar.gz", tarred(JSON_LINES.encode(), "w:gz")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_that_people_have_are_read_and_converted(tmp_path: Path, layout: str) -> None:
    name, data = LAYOUTS[layout]
    (tmp_path / name).write_bytes(data)
    read = list(flashrag.read_documents(tmp_path / name))
    assert [(each.id, each.contents, each.metadata) for each in read] == [
        ("1", 'Aaron\nAaron, a "prophet"\nand priest', {}), ("2", "\n\u6c34 is wet", {}),
    ]  # fmt: skip
    run("retrieve", "convert", tmp_path / name, tmp_path / "out.jsonl")
    assert [chunk.contents for _, _, chunk in read_chunks(tmp_path / "out.jsonl")] == [
        one.contents for one in read
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x28\xb5\x2f\xfd\x04", "zstd -d"),
        (JSON_LINES.encode("utf-16"), "iconv -f UTF-16"),
        (b"\x80\x05\x95\x00", "Python pickle; .*to_json"),
        (b"SQLite format 3\x00", "sqlite3 -header -csv"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "page of HTML"),
        (
            zipped("corpus.jsonl", "queries.jsonl"),
            r"holds 2 files \(corpus.jsonl, queries.jsonl\); unpack it",
        ),
        (zipped("xl/workbook.xml", "xl/sheet1.xml"), "save its sheet as CSV"),
        (gzip.compress(parquet("snappy"), mtime=0), "unpack it first"),
        (gzip.compress(JSON_LINES.encode(), mtime=0)[:-9], "damaged or not complete"),
        ("id,text\n1,caf\u00e9\n".encode("latin-1"), "is not UTF-8 text"),
    ],
)
def test_a_layout_that_is_not_read_is_named_with_what_makes_it_readable(
    tmp_path: Path, data: bytes, words: str
) -> None:
    (tmp_path / "c.jsonl").write_bytes(data)
    with pytest.raises(ArtifactError, match=words):
        list(flashrag.read_documents(tmp_path / "c.jsonl"))


@pytest.mark.parametrize(
    "data", [b"\x28\xb5\x2f\xfd\x04", JSON_LINES.encode("utf-16"), b"<!DOCTYPE html>"]
)
def test_an_index_over_what_is_not_read_says_so_as_well(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "c.jsonl").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"zstd -d|iconv|HTML"):
        list(read_chunks(tmp_path / "c.jsonl"))


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        ("c.tsv", "1\tSome text\n2\tMore\n", 1, "put a line with the names of the columns"),
        ("c.tsv", "id\ttext\n1\ta\tb\n", 2, "3 cells for 2 columns"),
        ("c.csv", "id,text\n1,x\n2\n", 3, "1 cells for 2 columns"),
        ("c.tsv", 'id\ttext\n1\t"Foo" bar\n', 2, "double the quotes"),
        ("c.json", '[{"id": "1", "text": "x"}, {"id": "2", "text": }]', 2, "no JSON"),
        ("c.json", '[{"id": "1", "text": "x"}', 1, "ends after this entry"),
        ("c.json", '[{"id": "1", "text": "x"}, 7]', 2, "object"),
    ],
)
def test_a_row_of_a_table_or_array_that_does_not_fit_is_named(
    tmp_path: Path, name: str, text: str, line: int, words: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=words) as caught:
        list(flashrag.read_documents(tmp_path / name))
    assert caught.value.line == line


@pytest.mark.parametrize("name", ["header.csv", "nothing.jsonl"])
def test_a_file_without_documents_is_not_converted_into_an_empty_one(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("id,title,text\n" if name.endswith("csv") else "")
    with pytest.raises(ArtifactError, match=rf"{name} (holds no document|is empty)"):
        run("retrieve", "convert", tmp_path / name, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    "layout", ["array", "DPR's table", "Parquet", "Arrow stream", "zip", "bzip2"]
)
def test_an_index_over_another_layout_names_the_command_that_converts_it(
    tmp_path: Path, layout: str
) -> None:
    name, data = LAYOUTS[layout]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(
        ArtifactError,
        match=r"position in JSON Lines; write them so with `deepsearch retrieve convert ",
    ):
        list(read_chunks(tmp_path / name))


def test_an_array_of_many_blocks_is_read_entry_by_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "BLOCK_CHARS", 7)
    rows: list[object] = [{"id": str(number), "text": "x" * number} for number in range(40)]
    (tmp_path / "c.json").write_text(json.dumps([*rows, 12345678901, "a]"]), encoding="utf-8")
    read = [json.loads(row) for _, row in layouts.read_numbered(tmp_path / "c.json")]
    assert read == [*rows, 12345678901, "a]"]


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


# --- Rows that a trainer's own reward selector knows (verl#5558, verl#3450) ---

# The sets of `default_compute_score` (volcengine/verl 0.9.1, verl/utils/reward_score/__init__.py)
# and of `_select_rm_score_fn` (PeterGriffinJin/Search-R1 a14dc3a, verl/trainer/main_ppo.py); any
# other name raises there.
SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
SELECTED = {"search-r1": set(SETS), "verl": {f"searchR1_{name}" for name in SETS}}


def rows_for(tmp_path: Path, to: str, *options: str) -> pd.DataFrame:
    path = write(
        tmp_path / "q.jsonl",
        QUESTION,
        QUESTION | {"id": "r", "golden_answers": ["Tim Burton", "Burton"]},
    )
    run("trajectories", "convert", path, tmp_path / "rows.parquet", "--to", to, *options)
    return pd.read_parquet(tmp_path / "rows.parquet")


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("to", SELECTED)
def test_rows_name_a_data_source_for_which_the_trainer_has_a_reward(
    tmp_path: Path, to: str, name: str
) -> None:
    frame = rows_for(tmp_path, to, "--dataset", name)
    assert set(frame.data_source) <= SELECTED[to]
    assert list(frame.reward_model[1]["ground_truth"]["target"]) == ["Tim Burton", "Burton"]
    if to == "verl":
        created = frame.extra_info[0]["tools_kwargs"]["search"]["create_kwargs"]
        assert created["data_source"] == frame.data_source[0]


@pytest.mark.parametrize("to", SELECTED)
@pytest.mark.parametrize(
    "options", [(), ("--dataset", "multihoprag"), ("--dataset", "searchR1_nq"), ("--dataset", "")]
)
def test_a_row_for_which_the_trainer_would_raise_is_refused_with_the_names_that_it_knows(
    tmp_path: Path, to: str, options: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match="musique, nq, popqa, triviaqa"):
        rows_for(tmp_path, to, *options)
    assert not (tmp_path / "rows.parquet").exists()


@pytest.mark.skipif(find_spec("verl") is None, reason="veRL is not installed")
@pytest.mark.parametrize("name", SETS)
def test_verls_own_selector_scores_the_rows(tmp_path: Path, name: str) -> None:
    compute_score = importlib.import_module("verl.utils.reward_score").default_compute_score
    for _, row in rows_for(tmp_path, "verl", "--dataset", name).iterrows():
        truth = row.reward_model["ground_truth"]
        assert (
            compute_score(row.data_source, f"<answer>{truth['target'][-1]}</answer>", truth) == 1.0
        )
        assert compute_score(row.data_source, "<answer>someone else</answer>", truth) == 0.0


# --- Errored rows, and what a file cannot know ---

ERRORED: list[Line] = [
    {"pred": None},
    {"pred": NAN},
    {"pred": None, "error": "timeout"},
    {"pred": "x", "error": {"code": 5}},
]


@pytest.mark.parametrize("row", [*ERRORED, {"pred": ""}, {}], ids=repr)
def test_an_errored_row_is_a_failure_of_its_kind_and_stays_in_the_denominator(
    tmp_path: Path, row: Line
) -> None:
    path = write(tmp_path / "p.jsonl", QUESTION | {"pred": "x"}, QUESTION | {"id": "r"} | row)
    scored = score_predictions(path)
    kind = "model_error" if "error" in row else "no_answer_tag"
    assert (scored.rows, scored.failures) == (2, {kind: 1})
    assert scored.scores.metrics["em"].tolist() == [1.0, 0.0]
    assert json.loads(run("score", path, "--json", "--draws", 0))["failures"] == {kind: 1}
    assert f"1 of 2 answers are failures: {kind} 1" in run("score", path, "--draws", 0)


def test_a_file_whose_answers_have_another_key_is_refused_instead_of_scored_as_zero(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "p.jsonl", QUESTION | {"prediction": "x"})
    with pytest.raises(ArtifactError, match="has the key `pred`"):
        score_predictions(path)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ({"pred": None, "answer": None, "error": "timeout"}, StopReason.MODEL_ERROR),
        ({"pred": None, "answer": None, "error": {"code": 502}}, StopReason.MODEL_ERROR),
        ({"pred": None, "answer": None}, StopReason.NO_ANSWER_TAG),
        ({"pred": NAN, "answer": NAN, "error": NAN}, StopReason.NO_ANSWER_TAG),
        ({"pred": "x", "answer": None, "error": False}, StopReason.ANSWERED),
        ({"pred": "x", "error": {}}, StopReason.ANSWERED),
        ({}, StopReason.NO_ANSWER_TAG),
        (None, StopReason.NO_ANSWER_TAG),
        (NAN, StopReason.NO_ANSWER_TAG),
    ],
)
def test_an_errored_result_is_imported_as_a_failed_rollout(
    tmp_path: Path, output: object, reason: StopReason
) -> None:
    path = write(tmp_path / "r.jsonl", QUESTION | {"output": output})
    import_results(path, tmp_path / "t.jsonl", "m")
    [trajectory] = read_jsonl(tmp_path / "t.jsonl", Trajectory)
    assert trajectory.stop_reason is reason


def test_statistics_leave_out_what_results_of_other_systems_cannot_know(tmp_path: Path) -> None:
    """Zero searches would be a figure; there is none."""
    path = write(
        tmp_path / "r.jsonl", QUESTION | {"output": {"pred": "x"}, "supporting_titles": ["Water"]}
    )
    import_results(path, tmp_path / "t.jsonl", "m")
    gold = write(tmp_path / "q.jsonl", QUESTION | {"supporting_titles": ["Water"]})
    everything = read_statistics(tmp_path / "t.jsonl", gold).groups["all"]
    assert set(everything.figures) == {"em", "f1", "acc", "precision", "recall"}
    assert (everything.rollouts, everything.rounds, everything.tool_calls) == (1, {}, {})
    table = run("trajectories", "stats", tmp_path / "t.jsonl", "--questions", gold)
    assert "searches" not in table
    assert "tool calls" not in table


# --- IFEval's arguments (olmo-eval#324) ---


@pytest.mark.parametrize(
    ("instruction", "arguments", "words"),
    [
        (
            "length_constraints:number_words",
            {"relation": "at least", "num_word": 300},
            "'num_word' is none of its arg",
        ),
        ("length_constraints:number_words", {"relation": "at least"}, "'num_words' is missing"),
        (
            "length_constraints:number_words",
            {"relation": "at least", "num_words": "300"},
            "do not work",
        ),
        ("keywords:existence", {"keywords": "sea"}, "'keywords' must be a list"),
        (
            "keywords:forbidden_words",
            {"forbidden_words": "sea"},
            "'forbidden_words' must be a list",
        ),
        ("language:response_language", {"language": "xx"}, "do not work"),
        (
            "length_constraints:number_words",
            {"relation": "more than", "num_words": 300},
            "do not work",
        ),
        ("punctuation:no_comma", {"commas": 0}, "its arguments: none"),
    ],
)
def test_a_wrong_argument_of_a_checker_is_found_before_any_prompt_is_asked(
    tmp_path: Path, instruction: str, arguments: Line, words: str
) -> None:
    prompt = {
        "key": 1,
        "prompt": "Say it.",
        "instruction_id_list": [instruction],
        "kwargs": [arguments],
    }
    with pytest.raises(RecordError, match=f"line 1: .*{instruction}.*{words}"):
        read_prompts(write(tmp_path / "prompts.jsonl", prompt))


def test_two_prompts_of_one_key_are_named(tmp_path: Path) -> None:
    row = {
        "key": 1,
        "prompt": "p",
        "instruction_id_list": ["keywords:existence"],
        "kwargs": [{"keywords": ["a"]}],
    }
    path = tmp_path / "prompts.jsonl"
    write(path, row, row)
    with pytest.raises(RecordError, match="line 2: field 'key': 1 is the key of an earlier prompt"):
        read_prompts(path)


# Other members of the kinds above.


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"docid": "1", "title": "T", "text": "x"},
            ["field 'id'", "docid, title, text", "jq -c"],
        ),  # MS MARCO
        ({"id": "1", "content": "x"}, ["'contents' nor 'text'", "id, content", ".text = .NAME"]),
        ({"id": "1", "passage": "x", "title": "T"}, ["id, passage, title", ".text = .NAME"]),
    ],
)
def test_a_document_whose_keys_have_other_names_is_told_the_command_that_renames_them(
    tmp_path: Path, row: Line, words: list[str]
) -> None:
    with pytest.raises(RecordError, match="line 1") as caught:
        documents(tmp_path, row)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    "answers", [["a"], {"text": ["a"], "answer_start": [1]}], ids=["DPR", "SQuAD"]
)
def test_a_question_whose_answers_have_another_name_is_told_the_command_too(
    tmp_path: Path, answers: object
) -> None:
    with pytest.raises(RecordError, match=r"field 'golden_answers'.*id, question, answers.*jq -c"):
        questions(tmp_path, {"id": "1", "question": "Q?", "answers": answers})


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (b'{\n "id": "1",\n "contents": "x"\n}\n', r"jq -c \. FILE"),
        (b'{"id": "1", "contents": "x"}{"id": "2", "contents": "y"}\n', r"jq -c \. FILE"),
        (b'{"id": "1", "contents": "caf\xe9"}\n', "iconv -f WINDOWS-1252"),
        ('{"id": "1"}'.encode("utf-32"), "iconv -f UTF-32"),
    ],
    ids=["an object over several lines", "two on one line", "Latin 1", "UTF-32"],
)
def test_text_that_is_no_json_lines_is_told_the_command_that_makes_it_so(
    tmp_path: Path, data: bytes, remedy: str
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(data)
    with pytest.raises((RecordError, ArtifactError), match=remedy):
        list(flashrag.read_documents(path))


@pytest.mark.parametrize("delimiter", [";", "|"])
def test_tables_with_other_delimiters_are_read_by_their_header(
    tmp_path: Path, delimiter: str
) -> None:
    path = tmp_path / "corpus.csv"
    path.write_text(
        delimiter.join(("id", "title", "text"))
        + "\n"
        + delimiter.join(("1", "Port", "Old, new"))
        + "\n"
    )
    [document] = flashrag.read_documents(path)
    assert document.contents == "Port\nOld, new"


@pytest.mark.parametrize(
    "reader", [flashrag_sets.read_hotpotqa, flashrag_sets.read_hotpotqa_paragraphs]
)
def test_lists_that_a_hubs_copy_writes_as_json_text_are_lists(
    tmp_path: Path, reader: Callable[..., Any]
) -> None:
    """2WikiMultihopQA on the Hugging Face hub."""
    as_text = {name: json.dumps(HOTPOT[name]) for name in ("context", "supporting_facts")}
    plain, copy = tmp_path / "plain.jsonl", tmp_path / "copy.jsonl"
    write(plain, HOTPOT)
    write(copy, HOTPOT | as_text)
    assert list(reader(copy)) == list(reader(plain)) != []


def test_a_question_that_names_a_question_is_whole_in_a_training_row(tmp_path: Path) -> None:
    """Search-R1's instruction ends with an example of an answer."""
    prompt = (
        "Answer. For example, <answer> Beijing </answer>. Question: Who asked 'Question: why?'\n"
    )
    row = SEARCH_R1 | {"prompt": [{"role": "user", "content": prompt}]}
    assert questions(tmp_path, row)[0].question == "Who asked 'Question: why?'"


def test_a_target_as_json_text_is_no_answer_in_json(tmp_path: Path) -> None:
    reward = {"style": "rule", "ground_truth": json.dumps({"target": ["Tim Burton"]})}
    assert questions(tmp_path, SEARCH_R1 | {"reward_model": reward})[0].golden_answers == (
        "Tim Burton",
    )


def test_a_single_alias_counts_as_an_answer(tmp_path: Path) -> None:
    row = {"id": "1", "question": "Q?", "answer": "a", "answer_aliases": "b"}
    assert questions(tmp_path, row)[0].golden_answers == ("a", "b")


def test_a_blank_question_and_titles_without_sentences_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="field 'question': the text is blank"):
        questions(tmp_path, {"id": "1", "question": "  ", "golden_answers": ["a"]})
    path = tmp_path / "dev.jsonl"
    write(path, HOTPOT | {"context": {"title": ["T", "U"], "sentences": [["s"]]}})
    with pytest.raises(
        RecordError, match=r"line 1: field 'metadata\.context': .*2 titles for the sentences of 1"
    ):
        list(flashrag_sets.read_hotpotqa_paragraphs(path))
