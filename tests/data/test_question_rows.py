"""What question files hold as golden answers and evidence: what is read as what, and what a refusal says."""

import json
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.core.errors import RecordError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Question, StopReason, Trajectory
from deepsearch_rl.data.flashrag import read_questions


def read(folder: Path, **fields: Any) -> Question:
    path = folder / "questions.jsonl"
    path.write_text(json.dumps({"id": "q1", "question": "Who?", **fields}) + "\n", encoding="utf-8")
    [question] = read_questions(path)
    return question


@pytest.mark.parametrize("key", ["answer", "golden_answers"])
@pytest.mark.parametrize(
    ("value", "answers"),
    [
        ("Paris", ("Paris",)),
        (1979, ("1979",)),
        ([1979, "in 1979"], ("1979", "in 1979")),
        ('["Paris", "P"]', ("Paris", "P")),
        (["Paris", "", None, " "], ("Paris",)),
        ("[0, 1)", ("[0, 1)",)),
        ('("Heroes" album)', ('("Heroes" album)',)),
        (["(3, 4)", "[0, 1]", "[Verse 1]", "f(x)"], ("(3, 4)", "[0, 1]", "[Verse 1]", "f(x)")),
        ("[1911, 1912]", ("1911", "1912")),
        ({"target": ["Ada", "A"]}, ("Ada", "A")),
        ('{"target": ["Ada"]}', ("Ada",)),
        ({"value": "Ada", "aliases": ["A", "Ada S."], "type": "x"}, ("Ada", "A", "Ada S.")),
    ],
)
def test_golden_answers_are_a_list_of_texts_however_they_are_written(
    tmp_path: Path, key: str, value: object, answers: tuple[str, ...]
) -> None:
    assert read(tmp_path, **{key: value}).golden_answers == answers


@pytest.mark.parametrize("name", ["answer", "golden_answers"])
def test_a_list_in_a_cell_of_a_table_is_a_list(tmp_path: Path, name: str) -> None:
    path = tmp_path / "questions.csv"
    path.write_text(f'id,question,{name}\n1,Who?,"[""Paris"", ""P""]"\n', encoding="utf-8")
    [question] = read_questions(path)
    assert question.golden_answers == ("Paris", "P")


@pytest.mark.parametrize("value", [[""], [" ", None], [], "  "])
def test_a_question_of_blank_answers_is_refused_with_what_to_do(
    tmp_path: Path, value: object
) -> None:
    with pytest.raises(RecordError, match=r"golden_answers': no answer contains a word; add one"):
        read(tmp_path, golden_answers=value)


PRINTED = [
    *(
        "['Paris', 'P']",
        "['Paris' 'P']",
        "[['Paris']]",
        "('Paris', 'P')",
        "('Paris',)",
        "{'Paris', 'P'}",
    ),
    *("array(['Ada'], dtype=object)", "np.array(['Ada'])", "frozenset({'Ada'})", "set()"),
    "{'target': array(['Ada'], dtype=object)}",
    *(
        "[array(['Ada'], dtype=object)]",
        "[np.str_('Ada'), np.str_('A')]",
        "array('Ada', dtype='<U3')",
    ),
    *("[1911 1912]", "[np.int64(1911)]", "(1911,)", "[None]", "[b'Ada']"),
]


@pytest.mark.parametrize("key", ["answer", "golden_answers"])
@pytest.mark.parametrize("printed", PRINTED)
def test_what_python_prints_of_a_list_is_refused_with_jsons_form(
    tmp_path: Path, key: str, printed: str
) -> None:
    for value in (printed, [printed]):
        with pytest.raises(RecordError, match=r"this list is not JSON; write .*json\.dumps"):
            read(tmp_path, **{key: value})


@pytest.mark.parametrize("key", ["answer", "golden_answers"])
@pytest.mark.parametrize("value", [[[1911, 1912]], "[[1911, 1912]]", [["Ada"]], [{"text": "Ada"}]])
def test_a_list_in_a_list_of_answers_is_refused(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(RecordError, match="answers': an answer is itself a list or an object"):
        read(tmp_path, **{key: value})


@pytest.mark.parametrize("truth", [{"target": ["Ada"]}, ["Ada"], '{"target": ["Ada"]}'])
def test_the_target_of_a_reward_is_the_answer_beside_a_question_without_others(
    tmp_path: Path, truth: object
) -> None:
    question = read(tmp_path, reward_model={"ground_truth": truth, "style": "rule"})
    assert question.golden_answers == ("Ada",)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"supporting_doc_ids": "7"}, "metadata.supporting_doc_ids"),
        ({"supporting_titles": [7]}, "metadata.supporting_titles.0"),
        ({"evidence_list": ["a fact"]}, "metadata.evidence_list.0"),
        ({"golden_answers": [1.5]}, "golden_answers.0"),
    ],
)
def test_another_kind_of_value_is_named_by_its_field(
    tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(RecordError) as caught:
        read(tmp_path, **({"golden_answers": ["P"]} | fields))
    assert caught.value.field == field


def test_a_trajectory_is_no_question(tmp_path: Path) -> None:
    trajectory = Trajectory(
        id="q1#0", question_id="q1", sample=0, question="Who?", golden_answers=("P",), model="m", prompt="p",
        temperature=0.7, messages=(), stop_reason=StopReason.ANSWERED,
    )  # fmt: skip
    path = tmp_path / "rollouts.jsonl"
    write_jsonl(path, [trajectory])
    with pytest.raises(RecordError, match="line 1: this is a trajectory; name the file of"):
        list(read_questions(path))
