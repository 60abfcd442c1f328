"""Question sets in the tables and with the keys of their authors."""

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from deepsearch_rl.core.errors import RecordError
from deepsearch_rl.core.records import Question
from deepsearch_rl.data.benchmarks import read_judged
from deepsearch_rl.data.catalogue import CORPUS_FORMATS, QUESTION_FORMATS
from deepsearch_rl.search.gold import gold_evidence

Line = dict[str, Any]


def write(path: Path, *lines: Line) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def read(name: str, path: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(each.id, each.question, each.golden_answers) for each in QUESTION_FORMATS[name](path)]


def gold_of(question: Question) -> tuple[str, ...]:
    gold = gold_evidence(question)
    return gold.items if gold else ()


def test_triviaqas_answer_object_is_its_value_and_aliases(tmp_path: Path) -> None:
    answer = {
        "aliases": ["Sunset Bld", "Sunset Boulevard"],
        "normalized_aliases": ["sunset bld"],
        "value": "Sunset Boulevard",
        "type": "WikipediaEntity",
    }
    row = {
        "question": "Which musical premiered in 1993?",
        "question_id": "tc_33",
        "entity_pages": {"title": ["Sunset"], "wiki_context": ["long"]},
        "search_results": {"title": []},
        "answer": answer,
    }
    asked = ("tc_33", row["question"], ("Sunset Boulevard", "Sunset Bld"))
    path = write(tmp_path / "q.jsonl", row)
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "q.parquet")
    assert read("triviaqa", path) == read("triviaqa", tmp_path / "q.parquet") == [asked]
    [question] = QUESTION_FORMATS["triviaqa"](path)
    assert question.metadata.question_type == "1_hop"
    assert question.metadata.model_extra == {}


def test_the_hidden_answers_of_triviaqas_test_split_are_refused(tmp_path: Path) -> None:
    row = {"question": "Who?", "question_id": "tc_1", "answer": {"aliases": [], "value": "<unk>"}}
    with pytest.raises(RecordError, match="no answer contains a word"):
        read("triviaqa", write(tmp_path / "q.jsonl", row))


def test_bamboogles_table_is_read_and_numbered(tmp_path: Path) -> None:
    path = tmp_path / "bamboogle.csv"
    path.write_text('Question,Answer\nWho was first?,Ada\n"When, exactly?",1821\n')
    rows = [("0", "Who was first?", ("Ada",)), ("1", "When, exactly?", ("1821",))]
    assert read("bamboogle", path) == rows


def test_popqas_and_nqs_tables_of_the_hub_are_read(tmp_path: Path) -> None:
    path = tmp_path / "popqa.tsv"
    path.write_text('id\tsubj\tquestion\tpossible_answers\n7\tAda\tWho?\t"[""Bo"", ""B""]"\n')
    assert read("popqa", path) == [("7", "Who?", ("Bo", "B"))]
    path = write(tmp_path / "nq.jsonl", {"question": "Who?", "answer": ["Bo", "B"]})
    assert read("nq", path) == [("0", "Who?", ("Bo", "B"))]


FRAMES = (
    "\tPrompt\tAnswer\twikipedia_link_1\twikipedia_link_2\treasoning_types\twiki_links\n"
    "0\tHow old?\t87\thttps://x\t\tNumerical reasoning | Tabular reasoning\t"
    "\"['https://en.wikipedia.org/wiki/Washington,_D.C.#History', "
    "'https://en.wikipedia.org/wiki/Zo%C3%AB', "
    "'https://en.wikipedia.org/wiki/Washington,_D.C.']\"\n"
)


def test_the_links_of_frames_are_gold_titles(tmp_path: Path) -> None:
    path = tmp_path / "frames.tsv"
    path.write_text(FRAMES)
    [question] = QUESTION_FORMATS["frames"](path)
    assert (question.id, question.question, question.golden_answers) == ("0", "How old?", ("87",))
    assert gold_of(question) == ("Washington, D.C.", "Zo\u00eb")
    types = {"reasoning_types": ["Numerical reasoning", "Tabular reasoning"]}
    assert question.metadata.model_extra == types

    path.write_text(FRAMES.replace("[", "<"))
    with pytest.raises(RecordError, match=r"wiki_links.*no list of links"):
        list(QUESTION_FORMATS["frames"](path))


BROWSED: Line = {
    "query_id": "769",
    "query": "Which school is it?",
    "answer": "Lee School",
    "gold_docs": [{"docid": "17", "text": "x"}],
    "evidence_docs": [{"docid": "17", "text": "x"}, {"docid": "23", "text": "y"}],
    "negative_docs": [{"docid": "4", "text": "z"}],
}


def test_the_evidence_documents_of_browsecomp_plus_are_gold_in_its_corpus(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", BROWSED)
    assert read("browsecomp_plus", path) == [("769", "Which school is it?", ("Lee School",))]
    [question] = QUESTION_FORMATS["browsecomp_plus"](path)
    assert gold_of(question) == ("17", "23")
    assert question.metadata.model_extra == {}

    text = "---\ntitle: Lee School: a history\ndate: 2020-01-01\n---\nIt opened in 1821."
    corpus = write(tmp_path / "c.jsonl", {"docid": 17, "text": text, "url": "https://x.example"})
    [document] = CORPUS_FORMATS["browsecomp_plus"](corpus)
    assert (document.id, document.title) == ("17", "Lee School: a history")
    assert document.text == text


def test_encrypted_rows_of_browsecomp_plus_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", BROWSED | {"query": "cEQZkv2vON1wV9G1t9Q2ob9Xncc="})
    with pytest.raises(RecordError, match=r"'question'.*encrypted; decrypt them"):
        list(QUESTION_FORMATS["browsecomp_plus"](path))


def test_beirs_judgements_are_gold_and_unknown_queries_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queries = write(
        tmp_path / "queries.jsonl",
        {"_id": "1", "text": "harbour", "metadata": {}},
        {"_id": "2", "text": "quay"},
    )
    qrels = tmp_path / "test.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\n1\ta\t1\n1\tb\t0\n1\tc\t2\nPLAIN-2\ta\t1\n")
    with caplog.at_level(logging.WARNING):
        harbour, quay = read_judged(queries, qrels)
    assert (harbour.question, gold_of(harbour)) == ("harbour", ("a", "c"))
    assert (quay.question, gold_evidence(quay)) == ("quay", None)
    assert "1 judged queries are not in" in caplog.text
    assert "PLAIN-2" in caplog.text

    rows = [{"query-id": "1", "corpus-id": "a", "score": 1}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "qrels.parquet")
    assert gold_of(next(read_judged(queries, tmp_path / "qrels.parquet"))) == ("a",)
    qrels.write_text("7\ta\t1\n2\ta\t1\n")
    with pytest.raises(RecordError, match="'query-id'"):
        list(read_judged(queries, qrels))
