"""Trajectory files as crashes, other versions and other tools leave them, through every command that reads one."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.cli.main import main
from deepsearch_rl.core.errors import RecordError
from deepsearch_rl.core.files import read_distinct, read_jsonl, write_jsonl
from deepsearch_rl.core.records import Message, StopReason, Trajectory
from deepsearch_rl.environment.exchange import export_rows
from deepsearch_rl.evaluate.f1_row import ConstantScore, F1TableRow
from deepsearch_rl.evaluate.predictions import score_predictions
from deepsearch_rl.evaluate.published import import_results
from deepsearch_rl.evaluate.report.rollouts import read_runs
from deepsearch_rl.evaluate.trajectory_statistics import read_statistics

Line = dict[str, Any]
UNICODE = {
    "decomposed": "Zoe\u0308",
    "full width": "\uff30\uff4f\uff52\uff54",
    "right to left": "\u202e\u05e9\u05dc\u05d5\u05dd",
    "astral": "\U0001f600\U00020000",
    "joined": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "line separators": "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg",
    "control characters": "a\x00b\x1b[31mc\x7f",
    "byte order mark": "\ufeffx",
    "private and unassigned": "\ue000\u0378\uffff",
    "Turkish": "\u0130\u0131",
}


def trajectory(number: int, answer: str = "Port Vale", gold: str = "Port Vale") -> Trajectory:
    """An answered rollout."""
    return Trajectory(
        id=f"q{number}#0",
        question_id=f"q{number}",
        sample=0,
        question=f"Who, {answer}?",
        golden_answers=(gold,),
        model="sft",
        prompt="tiny",
        temperature=0.7,
        messages=(
            Message(role="user", content=f"Who, {answer}?"),
            Message(role="assistant", content=f"<answer>{answer}</answer>"),
        ),
        answer=answer,
        stop_reason=StopReason.ANSWERED,
    )


def export(to: str) -> Callable[[Path], object]:
    """Converts to a format."""
    source = {"dataset": "world", "split": "train", "prompt": "tiny"}
    return lambda path: export_rows(path, path.with_name("out.jsonl"), to, **source)


ROW = F1TableRow(
    **dict.fromkeys(("model", "checkpoint", "corpus", "prompt"), "sft"),
    **dict.fromkeys(
        ("em", "f1", "f1_low", "f1_high", "acc", "precision", "recall", "mean_rounds"), 1.0
    ),
    **dict.fromkeys(("top_k", "chunk_size", "samples", "seed", "n"), 1),
    dataset="t",
    temperature=0.7,
    mean_tool_calls=0.0,
    failures={},
    generated=True,
    pass_at={1: 1.0},
    constant=ConstantScore(answer="x", f1=1.0, em=1.0),
    types={},
    controls={},
)
FILE = ROW.rollouts_file
READERS: dict[str, Callable[[Path], object]] = {
    "score and compare": score_predictions,
    "trajectories stats": lambda path: read_statistics(path, None),
    "trajectories convert --to ms-swift": export("ms-swift"),
    "trajectories convert --to trl": export("trl"),
    "filter": lambda path: list(read_distinct(path, Trajectory)),
    "report": lambda path: list(read_runs({"sft": path.parent}, [ROW], {}, 2, {})),
}


def lines(*numbers: int) -> list[Line]:
    """Rows of the rollouts of these questions."""
    return [json.loads(trajectory(number).model_dump_json(exclude_none=True)) for number in numbers]


def write(path: Path, rows: list[Line]) -> bytes:
    """Write rows and return the file's bytes."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path.read_bytes()


def refused(reader: str, path: Path) -> RecordError:
    """The error with which a file is refused; nothing is left behind."""
    with pytest.raises(RecordError) as caught:
        READERS[reader](path)
    assert caught.value.path == str(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    return caught.value


@pytest.mark.parametrize("reader", READERS)
def test_a_cut_last_line_is_refused_by_number(tmp_path: Path, reader: str) -> None:
    path = tmp_path / FILE
    whole = write(path, lines(0, 1, 2))
    path.write_bytes(whole[:-40])
    error = refused(reader, path)
    assert (error.line, error.field) == (3, "")
    assert "EOF" in str(error)


@pytest.mark.parametrize("reader", READERS)
def test_a_last_line_without_a_newline_is_whole(tmp_path: Path, reader: str) -> None:
    path = tmp_path / FILE
    path.write_bytes(write(path, lines(0, 1))[:-1])
    assert READERS[reader](path)


@pytest.mark.parametrize(
    ("reader", "change", "field"),
    [
        *((reader, {"schema_version": 99}, "schema_version") for reader in READERS),
        ("filter", {"schema_version": 1}, "schema_version"),
        ("filter", {"schema_version": "2"}, "schema_version"),
        ("filter", {"score": 1.0}, "score"),
    ],
)
def test_a_row_of_another_version_is_refused_by_its_field(
    tmp_path: Path, reader: str, change: Line, field: str
) -> None:
    path = tmp_path / FILE
    first, second = lines(0, 1)
    write(path, [first, second | change])
    error = refused(reader, path)
    assert (error.line, error.field) == (2, field)


@pytest.mark.parametrize("reader", READERS)
def test_a_rollout_that_stands_twice_is_refused_by_the_second(tmp_path: Path, reader: str) -> None:
    path = tmp_path / FILE
    write(path, lines(0, 1, 0))
    error = refused(reader, path)
    assert (error.line, error.field) == (3, "id")


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": "\xff\xfe"}',
        b'{"id": "\\ud83d"}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b"\x00" * 64,
        b"null",
    ],
    ids=[
        "no UTF-8",
        "half a surrogate pair",
        "a byte order mark",
        "too deep",
        "zeros of a power cut",
        "null",
    ],
)
def test_what_is_no_record_is_refused_by_its_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / FILE
    path.write_bytes(write(path, lines(0)) + line + b"\n")
    assert refused("filter", path).line == 2


@pytest.mark.parametrize("text", UNICODE.values(), ids=UNICODE.keys())
def test_unicode_stays_as_it_is_through_every_reader(tmp_path: Path, text: str) -> None:
    path = tmp_path / FILE
    write_jsonl(path, [trajectory(0, answer=text, gold=text), trajectory(1)])
    assert next(iter(read_jsonl(path, Trajectory))).answer == text
    assert score_predictions(path).scores.metrics["em"].tolist() == [1.0, 1.0]
    for to in ("ms-swift", "trl"):
        export(to)(path)
        first = json.loads((tmp_path / "out.jsonl").read_bytes().split(b"\n")[0])
        assert f"<answer>{text}</answer>" in first["messages"][-1]["content"]
    assert read_statistics(path, None).outcomes == {"correct": 2}


def test_composed_and_decomposed_letters_are_different_answers_as_the_definitions_have_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / FILE
    write_jsonl(path, [trajectory(0, answer="Zo\u00eb", gold="Zoe\u0308")])
    assert score_predictions(path).scores.metrics["em"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>a</answer> no: <answer>b</answer>", "b"),
        ("<answer>a</answer> <answer>b", ""),
    ],
    ids=["two", "opened again"],
)
def test_answers_are_taken_out_of_the_results_of_other_systems_as_out_of_our_own(
    tmp_path: Path, text: str, answer: str
) -> None:
    row = {"id": "q", "question": "Who?", "golden_answers": ["b"], "output": {"answer": text}}
    write(tmp_path / "r.jsonl", [row])
    import_results(tmp_path / "r.jsonl", tmp_path / FILE, "m")
    [made] = read_distinct(tmp_path / FILE, Trajectory)
    assert made.answer == answer
    assert made.stop_reason is (StopReason.ANSWERED if answer else StopReason.NO_ANSWER_TAG)


@pytest.mark.parametrize(
    "command",
    [
        ["score", FILE],
        ["compare", FILE, FILE],
        ["trajectories", "stats", FILE],
        ["trajectories", "convert", FILE, "out.jsonl", "--to", "trl"],
    ],
    ids=" ".join,
)
def test_every_command_ends_with_one_paragraph_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["deepsearch", *command])
    write(tmp_path / FILE, lines(0, 0))
    with pytest.raises(SystemExit, match=r"^error: t\.search\.t0\.7\.jsonl, line 2: field 'id': "):
        main()
