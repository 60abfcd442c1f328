"""Rows for other trainers, read by their own loaders where those install here, and results of other systems."""

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import swift.dataset
from transformers import AutoTokenizer
from trl.data_utils import apply_chat_template
from typer.testing import CliRunner

from deepsearch_rl.agent.protocols import SearchTags
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL, chat_messages
from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import CheckFailedError, RecordError, UnknownNameError
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.records import UNKNOWN_PROMPT, Question, StopReason, ToolCall, Trajectory
from deepsearch_rl.environment.exchange import export_rows
from deepsearch_rl.evaluate.published import import_results
from deepsearch_rl.train.swift_rows import SwiftRow
from tests.train.test_swift_rows import ONE_CALL, conversation

SOURCE = {"dataset": "hotpotqa", "split": "train", "prompt": "multihoprag_nothink"}
PARALLEL = conversation(("", ["one", 'two "quoted" Zoë']), ("I look.", ["three"])).model_copy(
    update={"id": "q#1"}
)
FAILED = ONE_CALL.model_copy(update={"id": "q#2", "stop_reason": StopReason.DEADLINE})
QUESTIONS = [
    Question(id="q1", question="Who is mayor?", golden_answers=("Kaspar Granger", "K. Granger")),
    Question(id="q2", question="Wo liegt Zürich?", golden_answers=("Switzerland",)),
]


@pytest.fixture
def trajectories(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "t.jsonl", [ONE_CALL, PARALLEL, FAILED])
    return tmp_path / "t.jsonl"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "q.jsonl", QUESTIONS)
    return tmp_path / "q.jsonl"


def test_trl_renders_the_rows_as_the_server_renders_the_conversation(
    trajectories: Path, tmp_path: Path, model_folder: Path
) -> None:
    assert export_rows(trajectories, tmp_path / "out.jsonl", "trl", **SOURCE) == 2
    rows = datasets.load_dataset(
        "json",
        data_files=str(tmp_path / "out.jsonl"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    texts = [apply_chat_template(row, tokenizer, tools=row["tools"])["text"] for row in rows]
    served = [
        tokenizer.apply_chat_template(
            chat_messages(one.messages), tools=[RETRIEVE_TOOL], tokenize=False
        )
        for one in (ONE_CALL, PARALLEL)
    ]
    assert texts == served
    for query in ("one", 'two \\"quoted\\" Zoë', "three"):
        assert f'{{"name": "retrieve", "arguments": {{"query": "{query}"}}}}' in texts[1]


def swift_rows(path: Path) -> list[dict[str, Any]]:
    """A file as ms-swift's own loader and preprocessor hand it to its templates; a row they refuse is an error."""
    rows, _ = swift.dataset.load_dataset(
        str(path),
        strict=True,
        num_proc=1,
        load_from_cache_file=False,
        use_hf=True,
        split_dataset_ratio=0.0,
    )
    return [{"messages": row["messages"], "tools": row["tools"]} for row in rows]


@pytest.mark.slow
def test_ms_swifts_loader_reads_every_row_as_it_was_written(
    trajectories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    out = tmp_path / "out.jsonl"
    assert export_rows(trajectories, out, "ms-swift", **SOURCE) == 2
    rows = swift_rows(out)
    assert [len(row["messages"]) for row in rows] == [5, 10]
    written = [row.model_dump() for row in read_jsonl(out, SwiftRow)]
    for row, expected in zip(rows, written, strict=True):
        read = [{"role": turn["role"], "content": turn["content"]} for turn in row["messages"]]
        assert read == list(expected["messages"])
        assert row["tools"] == json.loads(expected["tools"]) == [RETRIEVE_TOOL]


def test_ms_swift_has_a_row_per_turn_where_it_is_asked_for(
    trajectories: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    assert export_rows(trajectories, out, "ms-swift-turns", **SOURCE) == 2 + 3
    rows = list(read_jsonl(out, SwiftRow))
    ends = [row.messages[-1].role for row in rows]
    assert ends == ["tool_call", "assistant", "tool_call", "tool_call", "assistant"]


THINKING = ONE_CALL.model_copy(
    update={
        "messages": tuple(
            message.model_copy(update={"reasoning": f"Turn {position}."})
            if message.role == "assistant"
            else message
            for position, message in enumerate(ONE_CALL.messages)
        )
    }
)


def test_reasoning_goes_along_with_every_turn_of_a_trl_row(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "t.jsonl", [THINKING])
    export_rows(tmp_path / "t.jsonl", tmp_path / "out.jsonl", "trl", **SOURCE)
    [row] = datasets.load_dataset(
        "json",
        data_files=str(tmp_path / "out.jsonl"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    thoughts = [
        turn["reasoning_content"] for turn in row["messages"] if turn["role"] == "assistant"
    ]
    assert thoughts == ["Turn 2.", "Turn 4."]


@pytest.mark.parametrize("to", ["ms-swift", "ms-swift-turns", "trl"])
def test_a_conversation_of_the_tag_protocol_is_refused_by_its_id(tmp_path: Path, to: str) -> None:
    tagged = ONE_CALL.model_copy(update={"id": "tagged#0", "protocol": "search_tags"})
    write_jsonl(tmp_path / "t.jsonl", [ONE_CALL, tagged])
    with pytest.raises(CheckFailedError, match=r"tagged#0 is of the protocol 'search_tags'"):
        export_rows(tmp_path / "t.jsonl", tmp_path / "out", to, **SOURCE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["ms-swift", "trl"])
def test_a_call_that_is_no_json_and_another_systems_result_are_refused_by_their_ids(
    tmp_path: Path, to: str
) -> None:
    call = ToolCall(id="call_1", name="retrieve", arguments="mayor of Northgate")
    turns = tuple(
        turn.model_copy(update={"tool_calls": (call,)}) if turn.tool_calls else turn
        for turn in ONE_CALL.messages
    )
    for one, words in (
        (
            ONE_CALL.model_copy(update={"messages": turns}),
            "call_1: its arguments are no JSON object",
        ),
        (ONE_CALL.model_copy(update={"prompt": UNKNOWN_PROMPT}), "another system's result"),
    ):
        write_jsonl(tmp_path / "t.jsonl", [one])
        with pytest.raises(CheckFailedError, match=words):
            export_rows(tmp_path / "t.jsonl", tmp_path / "out", to, **SOURCE)


def test_verl_reads_prompt_golden_answers_and_tool_arguments_as_its_dataset_does(
    questions: Path, tmp_path: Path, model_folder: Path
) -> None:
    export_rows(questions, tmp_path / "verl.parquet", "verl", **SOURCE)
    cache = str(tmp_path / "cache")
    rows = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "verl.parquet"), cache_dir=cache
    )["train"]
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    for number, (row, question) in enumerate(zip(rows, QUESTIONS, strict=True)):
        prompt = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, tokenize=False
        )
        assert prompt.endswith(f"{question.question}<|im_end|>\n<|im_start|>assistant\n")
        extra = row["extra_info"]
        assert (extra["index"], extra["need_tools_kwargs"]) == (number, True)
        created = extra["tools_kwargs"]["search"]["create_kwargs"]
        assert tuple(created["ground_truth"]["target"]) == question.golden_answers
        assert tuple(row["reward_model"]["ground_truth"]["target"]) == question.golden_answers
        assert row["reward_model"]["style"] == "rule"


def test_search_r1_and_verl_rows_come_back_from_parquet_with_their_fields(
    questions: Path, tmp_path: Path
) -> None:
    for to in ("search-r1", "verl"):
        assert export_rows(questions, tmp_path / f"{to}.parquet", to, **SOURCE) == 2
    search_r1, verl = (pd.read_parquet(tmp_path / f"{to}.parquet") for to in ("search-r1", "verl"))
    first = search_r1.iloc[0]
    assert (first.data_source, first.ability) == ("hotpotqa", "fact-reasoning")
    assert [turn["role"] for turn in first.prompt] == ["user"]
    assert first.prompt[0]["content"].endswith("Question: Who is mayor?")
    assert list(first.reward_model["ground_truth"]["target"]) == ["Kaspar Granger", "K. Granger"]
    assert first.extra_info == {"split": "train", "index": 0}
    second = verl.iloc[1]
    assert second.data_source == "searchR1_hotpotqa"
    assert [turn["role"] for turn in second.prompt] == ["system", "user"]
    assert second.prompt[0]["content"] == load_prompt("multihoprag_nothink").replace(
        "`retrieve`", "`search`"
    )
    assert "`search`" in second.prompt[0]["content"]
    created = second.extra_info["tools_kwargs"]["search"]["create_kwargs"]
    assert (created["question"], created["data_source"]) == (
        "Wo liegt Zürich?",
        "searchR1_hotpotqa",
    )


def test_search_r1_rows_begin_as_the_agents_conversations_of_its_protocol(
    questions: Path, tmp_path: Path
) -> None:
    export_rows(questions, tmp_path / "rows.parquet", "search-r1", **SOURCE | {"prompt": None})
    opening = SearchTags(load_prompt("search_tags")).opening(QUESTIONS[0].question)
    assert list(pd.read_parquet(tmp_path / "rows.parquet").prompt[0]) == [
        {"role": "user", "content": opening[0].content}
    ]


def test_rlinf_lines_hold_the_message_that_says_how_to_search_and_the_solutions(
    questions: Path, tmp_path: Path
) -> None:
    export_rows(questions, tmp_path / "out.jsonl", "rlinf", **SOURCE | {"prompt": None})
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    opening = SearchTags(load_prompt("search_tags")).opening("Wo liegt Zürich?")
    prompt = [{"role": "user", "content": opening[0].content}]
    assert json.loads(lines[1]) == {"prompt": prompt, "solutions": ["Switzerland"]}


def test_rows_that_a_trainer_would_refuse_are_refused_before_the_file_appears(
    tmp_path: Path,
) -> None:
    cut = ONE_CALL.model_copy(update={"messages": ONE_CALL.messages[:-1]})
    write_jsonl(tmp_path / "t.jsonl", [cut])
    with pytest.raises(CheckFailedError, match="ends in an assistant's answer"):
        export_rows(tmp_path / "t.jsonl", tmp_path / "out.jsonl", "trl", **SOURCE)
    write_jsonl(tmp_path / "t.jsonl", [FAILED])
    with pytest.raises(CheckFailedError, match="no rows"):
        export_rows(tmp_path / "t.jsonl", tmp_path / "out.jsonl", "ms-swift", **SOURCE)
    assert not (tmp_path / "out.jsonl").exists()


def test_an_unknown_format_is_answered_with_the_known_ones(
    trajectories: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnknownNameError, match="'verl'"):
        export_rows(trajectories, tmp_path / "out", "verll", **SOURCE)


RESULTS = [
    {
        "id": 7,
        "question": "A?",
        "golden_answers": ["x"],
        "output": {"answer": "So <answer>x</answer>", "pred": "x"},
    },
    {
        "id": "b",
        "question": "B?",
        "golden_answers": ["x"],
        "output": {"answer": "", "pred": "x", "error": "timeout"},
    },
    {
        "id": "c",
        "question": "C?",
        "golden_answers": ["x"],
        "output": {"pred": "x", "metric_score": {"em": 1.0}},
    },
]


@pytest.mark.parametrize("array", [False, True])
def test_results_of_other_systems_become_trajectories_and_their_errors_failures(
    tmp_path: Path, array: bool
) -> None:
    path = tmp_path / "results.jsonl"
    lines = "\n".join(map(json.dumps, RESULTS))
    path.write_text(json.dumps(RESULTS) if array else lines)
    assert import_results(path, tmp_path / "out.jsonl", "kimi-k2") == 3
    read = {one.id: one for one in read_jsonl(tmp_path / "out.jsonl", Trajectory)}
    assert {name: one.answer for name, one in read.items()} == {"7#0": "x", "b#0": "", "c#0": "x"}
    assert (read["b#0"].stop_reason, read["b#0"].error) == (StopReason.MODEL_ERROR, "timeout")


def test_a_result_that_stands_twice_is_named_and_none_at_all_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(f"{json.dumps(RESULTS[0])}\n{json.dumps(RESULTS[0])}\n")
    with pytest.raises(RecordError) as caught:
        import_results(tmp_path / "results.jsonl", tmp_path / "out.jsonl", "m")
    assert (caught.value.line, caught.value.field) == (2, "id")
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(CheckFailedError):
        import_results(tmp_path / "results.jsonl", tmp_path / "out.jsonl", "m")


def test_a_malformed_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps([RESULTS[0], {"id": "x", "question": "?"}]))
    with pytest.raises(RecordError) as caught:
        import_results(tmp_path / "results.jsonl", tmp_path / "out.jsonl", "m")
    assert (caught.value.line, caught.value.field) == (2, "golden_answers")


def test_the_command_converts_there_and_back(questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert (
        "2 rows"
        in CliRunner()
        .invoke(app, ["trajectories", "convert", str(questions), str(out), "--to", "rlinf"])
        .stdout
    )
    (tmp_path / "results.jsonl").write_text(json.dumps(RESULTS[0]))
    arguments = [
        "trajectories",
        "convert",
        str(tmp_path / "results.jsonl"),
        str(out),
        "--to",
        "trajectories",
    ]
    assert "1 rows" in CliRunner().invoke(app, arguments).stdout
    assert "--model" in str(CliRunner().invoke(app, [*arguments, "--model", ""]).exception)
    onto_itself = [*arguments[:3], arguments[2], *arguments[4:]]
    assert "the source itself" in str(CliRunner().invoke(app, onto_itself).exception)


@pytest.mark.parametrize(
    ("to", "option"),
    [
        ("trl", ["--prompt", "tiny"]),
        ("rlinf", ["--dataset", "nq"]),
        ("ms-swift", ["--split", "dev"]),
        ("verl", ["--model", "kimi-k2"]),
    ],
)
def test_an_option_that_a_format_does_not_read_is_refused(
    to: str, option: list[str], trajectories: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    line = ["trajectories", "convert", str(trajectories), str(out), "--to", to, *option]
    result = CliRunner().invoke(app, line)
    assert f"{option[0]} is for --to" in str(result.exception)
    assert not out.exists()
