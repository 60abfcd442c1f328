"""Question sets in their official files, in FlashRAG's layout and as training rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.errors import RecordError
from deepsearch_rl.core.records import Question
from deepsearch_rl.data import flashrag, question_sets
from deepsearch_rl.data.catalogue import CORPUS_FORMATS, QUESTION_FORMATS
from deepsearch_rl.search.gold import gold_evidence

Line = dict[str, Any]


QUESTION = {"id": "q", "question": "Who?", "golden_answers": ["x"]}


def write(path: Path, *lines: Line) -> Path:
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def questions(path: Path, *lines: Line) -> list[Question]:
    return list(flashrag.read_questions(write(path / "questions.jsonl", *lines)))


def run(*arguments: object) -> str:
    """What a command prints."""
    result = CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


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


ROWS = [
    {"id": "1", "text": 'Aaron, a "prophet"\nand priest', "title": "Aaron"},
    {"id": "2", "text": "\u6c34 is wet", "title": ""},
]


JSON_LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


SELECTED = {"search-r1": set(SETS), "verl": {f"searchR1_{name}" for name in SETS}}


@pytest.mark.parametrize(
    "reader", [question_sets.read_hotpotqa, question_sets.read_hotpotqa_paragraphs]
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
        list(question_sets.read_hotpotqa_paragraphs(path))


FLASHRAG_WIKI = {
    "id": "dev_0",
    "question": "Who is the mother of the director of Wojna?",
    "golden_answers": ["Malgorzata"],
    "metadata": {
        "type": "compositional",
        "supporting_facts": {"title": ["Wojna (film)", "Xawery"], "sent_id": [1, 2]},
        "evidences": {
            "fact": ["Wojna", "Xawery"],
            "relation": ["director", "mother"],
            "entity": ["Xawery", "Malgorzata"],
        },
        "context": {"title": ["Xawery"], "content": [["His mother is Malgorzata."]]},
    },
}
OFFICIAL_WIKI = {
    "_id": "dev_0",
    "question": FLASHRAG_WIKI["question"],
    "answer": "Malgorzata",
    "type": "compositional",
    "supporting_facts": [["Wojna (film)", 1], ["Xawery", 2]],
    "evidences": [["Wojna", "director", "Xawery"], ["Xawery", "mother", "Malgorzata"]],
}


@pytest.mark.parametrize(
    "row",
    [FLASHRAG_WIKI, OFFICIAL_WIKI, OFFICIAL_WIKI | {"evidences": json.dumps(OFFICIAL_WIKI["evidences"])}],
    ids=["FlashRAG", "official", "hub"],
)  # fmt: skip
def test_triples_of_2wiki_are_steps_that_refer_to_earlier_answers(
    tmp_path: Path, row: Line
) -> None:
    [question] = QUESTION_FORMATS["2wikimultihopqa"](write(tmp_path / "dev.jsonl", row))
    assert question.metadata.model_dump(exclude_none=True)["gold_steps"] == (
        {"question": "Wojna >> director", "answer": "Xawery", "title": "Wojna (film)"},
        {"question": "#1 >> mother", "answer": "Malgorzata", "title": "Xawery"},
    )


def test_triples_that_share_a_sentence_are_of_no_certain_title(tmp_path: Path) -> None:
    row = OFFICIAL_WIKI | {"supporting_facts": [["Wojna (film)", 1]]}
    [question] = QUESTION_FORMATS["2wikimultihopqa"](write(tmp_path / "dev.jsonl", row))
    assert [step.title for step in question.metadata.gold_steps or ()] == [None, None]


FLASHRAG_MUSIQUE = {
    "id": "dev_0",
    "question": MUSIQUE["question"],
    "golden_answers": ["Miquette Giraudy"],
    "metadata": {
        "question_decomposition": [
            hop | {"support_paragraph": MUSIQUE["paragraphs"][hop["paragraph_support_idx"]]}
            for hop in MUSIQUE["question_decomposition"]
        ]
    },
}


@pytest.mark.parametrize("row", [MUSIQUE, FLASHRAG_MUSIQUE], ids=["official", "FlashRAG"])
def test_decompositions_of_musique_are_steps_with_answers_and_titles(
    tmp_path: Path, row: Line
) -> None:
    [question] = QUESTION_FORMATS["musique"](write(tmp_path / "dev.jsonl", row))
    assert question.metadata.model_dump(exclude_none=True)["gold_steps"] == (
        {"question": "Green >> performer", "answer": "Steve Hillage", "title": "Green (album)"},
        {"question": "#1 >> spouse", "answer": "Miquette Giraudy", "title": "Miquette Giraudy"},
    )


def test_questions_without_steps_are_written_without_a_field_for_them(tmp_path: Path) -> None:
    [question] = QUESTION_FORMATS["hotpotqa"](write(tmp_path / "dev.jsonl", HOTPOT))
    assert json.loads(question.model_dump_json(exclude_none=True))["metadata"] == {
        "question_type": "comparison",
        "supporting_titles": ["Scott Derrickson", "Ed Wood"],
        "level": "hard",
    }


def test_hotpotqas_parquet_on_the_hub_gives_level_unescaped_titles_and_paragraphs(
    tmp_path: Path,
) -> None:
    row = HOTPOT | {
        "id": "5a8b57f2",
        "supporting_facts": {"title": ["A&amp;M", "Ed Wood"], "sent_id": [0, 1]},
        "context": {"title": ["Ed Wood", "A&amp;M"], "sentences": [["He.", " Was."], ["Records."]]},
    }
    pd.DataFrame([row]).drop(columns="_id").to_parquet(tmp_path / "validation.parquet")
    [question] = QUESTION_FORMATS["hotpotqa"](tmp_path / "validation.parquet")
    assert question.metadata.supporting_titles == ("A&M", "Ed Wood")
    assert question.metadata.model_extra == {"level": "hard"}
    documents = CORPUS_FORMATS["hotpotqa_paragraphs"](tmp_path / "validation.parquet")
    assert [document.contents for document in documents] == ["Ed Wood\nHe. Was.", "A&M\nRecords."]
