"""Rows of the real question sets in the layouts of their official files."""

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from deepsearch_rl.data.catalogue import CORPUS_FORMATS, QUESTION_FORMATS
from deepsearch_rl.data.flashrag import read_questions
from deepsearch_rl.data.titles import title_key


# Rows of the real sets in the layouts of their official files
def real_rows(path: Path, count: int) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines)
        return list(itertools.islice((row for row in rows if row.get("context_doc_ids")), count))


def real_texts(path: Path) -> dict[str, dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return {row["id"]: row for row in map(json.loads, lines)}


def official_hotpotqa(row: dict[str, Any], texts: dict[str, dict[str, str]]) -> dict[str, Any]:
    """HotpotQA's and 2WikiMultihopQA's form: titles with sentences."""
    context = [[texts[id_]["title"], [texts[id_]["text"]]] for id_ in row["context_doc_ids"]]
    facts = [[title, 0] for title in row["supporting_titles"]]
    return {
        "_id": row["id"],
        "question": row["question"],
        "answer": row["golden_answers"][0],
        "type": row["type"],
        "supporting_facts": facts,
        "context": context,
    }


def official_musique(row: dict[str, Any], texts: dict[str, dict[str, str]]) -> dict[str, Any]:
    paragraphs = [
        {
            "idx": place,
            "title": texts[id_]["title"],
            "paragraph_text": texts[id_]["text"],
            "is_supporting": id_ in row["supporting_doc_ids"],
        }
        for place, id_ in enumerate(row["context_doc_ids"])
    ]
    answer, *aliases = row["golden_answers"]
    names = {"id": row["id"], "question": row["question"], "answer": answer}
    return {**names, "answer_aliases": aliases, "answerable": True, "paragraphs": paragraphs}


def as_array(rows: list[dict[str, Any]], path: Path) -> None:
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8-sig")


def as_lines(rows: list[dict[str, Any]], path: Path) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def as_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    texts = [
        {
            name: json.dumps(value) if isinstance(value, list) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    pd.DataFrame(texts).to_parquet(path)


def as_csv(rows: list[dict[str, Any]], path: Path) -> None:
    as_parquet(rows, path.with_suffix(".parquet"))
    pd.read_parquet(path.with_suffix(".parquet")).to_csv(path, index=False)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("write_rows", [as_array, as_lines, as_parquet, as_csv])
@pytest.mark.parametrize(
    ("set_", "file", "official"),
    [
        ("hotpotqa", "train100", official_hotpotqa),
        ("2wikimultihopqa", "dev", official_hotpotqa),
        ("musique", "train", official_musique),
    ],
)
def test_real_rows_in_official_files_keep_answers_gold_and_paragraphs(
    real_data: Path,
    tmp_path: Path,
    set_: str,
    file: str,
    official: Callable[..., dict[str, Any]],
    write_rows: Callable[[list[dict[str, Any]], Path], None],
) -> None:
    rows = real_rows(real_data / set_ / f"{file}.jsonl.gz", 20)
    texts = real_texts(real_data / set_ / "corpus.jsonl.gz")
    # A table says so by its suffix; the other formats say it themselves
    path = tmp_path / ("official.csv" if write_rows is as_csv else "official")
    write_rows([official(row, texts) for row in rows], path)
    questions = list(QUESTION_FORMATS[set_](path))
    assert [question.question for question in questions] == [row["question"] for row in rows]
    documents = list(CORPUS_FORMATS[f"{set_}_paragraphs"](path))
    titles = {title_key(document.title) for document in documents}
    for question, row in zip(questions, rows, strict=True):
        assert question.golden_answers[0] == row["golden_answers"][0]
        gold = {title_key(texts[id_]["title"]) for id_ in row["supporting_doc_ids"]}
        assert set(map(title_key, question.metadata.supporting_titles or ())) == gold <= titles


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["nq", "triviaqa", "popqa", "bamboogle", "hotpotqa_2wiki_train"])
def test_real_questions_come_back_from_search_r1s_parquet_as_they_were(
    real_data: Path, tmp_path: Path, name: str
) -> None:
    asked = list(read_questions(real_data / "searchr1" / f"{name}.jsonl.gz"))[:200]
    rows = [
        {
            "data_source": name,
            "prompt": [
                {
                    "role": "user",
                    "content": "Answer. For example, <answer> Beijing </answer>. Question: "
                    f"{question.question}\n",
                }
            ],
            "ability": "fact-reasoning",
            "reward_model": {
                "style": "rule",
                "ground_truth": {"target": list(question.golden_answers)},
            },
            "extra_info": {"split": "train", "index": row},
        }
        for row, question in enumerate(asked)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    read = list(read_questions(tmp_path / "train.parquet"))
    assert [(each.question, each.golden_answers) for each in read] == [
        (each.question.strip(), each.golden_answers) for each in asked
    ]
