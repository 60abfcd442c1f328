"""Arguments of IFEval's checkers, validated before any prompt is sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.core.errors import RecordError
from deepsearch_rl.evaluate.ifeval import read_prompts

Line = dict[str, Any]


def write(path: Path, *lines: Line) -> Path:
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
    )
    return path


ROWS = [
    {"id": "1", "text": 'Aaron, a "prophet"\nand priest', "title": "Aaron"},
    {"id": "2", "text": "\u6c34 is wet", "title": ""},
]


JSON_LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


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
