"""Every file and body that comes from outside is typed: what does not fit is named by file, line and field."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import BaseModel

from deepsearch_rl.agent.timing import read_times
from deepsearch_rl.cli.doctor import Requirements
from deepsearch_rl.core.errors import ArtifactError, CheckFailedError, ConfigError, RecordError
from deepsearch_rl.core.files import check_frame, read_distinct, read_jsonl, read_record
from deepsearch_rl.core.profile import find_profile, load_profile
from deepsearch_rl.core.records import Document, FilterReport, Question, RetrievalReport, Trajectory
from deepsearch_rl.data import flashrag, question_sets
from deepsearch_rl.data.catalogue import QUESTION_FORMATS
from deepsearch_rl.environment.exchange import SCHEMAS
from deepsearch_rl.evaluate.explain.records import ExplainReport
from deepsearch_rl.evaluate.f1_row import IfevalScore, ModelEvaluation
from deepsearch_rl.evaluate.ifeval import read_prompts
from deepsearch_rl.evaluate.predictions import score_predictions
from deepsearch_rl.evaluate.published import import_results
from deepsearch_rl.evaluate.report.plots import read_rl_run
from deepsearch_rl.evaluate.tables import F1Table, Figures
from deepsearch_rl.search.manifest import read_manifest
from deepsearch_rl.search.rows import read_chunks
from deepsearch_rl.server.pages import PageFile
from deepsearch_rl.train.swift_rows import SwiftRow

Row = dict[str, Any]
ID = {"id": "a"}
QUESTION = {**ID, "question": "Who?", "golden_answers": ["x"]}
CHUNK = {**ID, "contents": "T\nx", "metadata": {"doc_id": "d", "doc_chunks": 1, "doc_chunk_id": 0}}
STEP = {"kind": "search", "message": 3, "start_ns": 1, "duration_ns": 2}
TRAJECTORY = {
    "id": "q#0", "question_id": "q", "sample": 0, "question": "Who?", "golden_answers": ["x"], "model": "m",
    "prompt": "tiny", "temperature": 0.7, "messages": [{"role": "user", "content": "Who?"}], "stop_reason": "answered",
}  # fmt: skip


@dataclass(frozen=True)
class Lines:
    """A JSON Lines file: how it is read, a row that fits, and changes to it by the field that they break."""

    read: Callable[[Path], object]
    row: Row
    breaks: dict[str, Row]
    name: str = "rows.jsonl"


def each(read: Callable[[Path], Any]) -> Callable[[Path], object]:
    """Reads to the end."""
    return lambda path: list(read(path))


LINES = {
    "corpus": Lines(
        each(lambda path: read_jsonl(path, Document)),
        {**ID, "contents": "T\nx"},
        {
            "id": {"id": ""},
            "contents": {"contents": None},
            "url": {"url": "u"},
            "metadata": {"metadata": []},
        },
    ),
    "FlashRAG corpus": Lines(
        each(flashrag.read_documents),
        {**ID, "contents": "T\nx"},
        {"id": {"id": None}, "contents": {"contents": []}},
    ),
    "chunks": Lines(
        each(read_chunks),
        CHUNK,
        {
            "contents": {"contents": ""},
            "metadata.doc_id": {"metadata": {"doc_chunks": 1, "doc_chunk_id": 0}},
            "metadata.doc_chunks": {
                "metadata": {"doc_id": "d", "doc_chunks": 0, "doc_chunk_id": 0}
            },
        },
    ),
    "questions": Lines(
        each(lambda path: read_jsonl(path, Question)),
        QUESTION,
        {
            "question": {"question": ""},
            "golden_answers": {"golden_answers": []},
            "golden_answers.0": {"golden_answers": [None]},
            "metadata.evidence_list.0.fact": {"metadata": {"evidence_list": [{"fact": ""}]}},
            "answer": {"answer": "x"},
        },
    ),
    "FlashRAG questions": Lines(
        each(flashrag.read_questions), QUESTION, {"golden_answers": {"golden_answers": [""]}}
    ),
    "HotpotQA questions": Lines(
        each(question_sets.read_hotpotqa), QUESTION, {"question": {"question": None}}
    ),
    "MuSiQue questions": Lines(
        each(question_sets.read_musique), QUESTION, {"question": {"question": None}}
    ),
    "2Wiki questions": Lines(
        each(QUESTION_FORMATS["2wikimultihopqa"]), QUESTION, {"question": {"question": None}}
    ),
    "GraphRAG-Bench corpus": Lines(
        each(question_sets.read_graphrag_corpus),
        {"corpus_name": "c", "context": "x"},
        {"context": {"context": None}, "corpus_name": {"corpus_name": ""}},
    ),
    "GraphRAG-Bench questions": Lines(
        each(question_sets.read_graphrag_questions),
        {**ID, "source": "c", "question": "Who?", "answer": "x", "question_type": "t"},
        {"answer": {"answer": ""}, "question_type": {"question_type": None}},
    ),
    "trajectories": Lines(
        lambda path: list(read_distinct(path, Trajectory)),
        TRAJECTORY,
        {
            "schema_version": {"schema_version": 99},
            "stop_reason": {"stop_reason": "bored"},
            "sample": {"sample": -1},
            "messages.0.role": {"messages": [{"role": "robot"}]},
            "usage.0.prompt_tokens": {"usage": [{"prompt_tokens": -1, "completion_tokens": 0}]},
            "score": {"score": 1.0},
        },
    ),
    "rollout times": Lines(
        lambda path: read_times(path.parents[1], ()),
        {
            "question_id": "q",
            "sample": 0,
            "trajectory": "0a",
            "start_ns": 5,
            "duration_ns": 4,
            "steps": [STEP],
        },
        {
            "duration_ns": {"duration_ns": -1},
            "steps.0.kind": {"steps": [STEP | {"kind": "thought"}]},
            "seconds": {"seconds": 1.0},
        },
        "digest/run.times",
    ),
    "SFT rows": Lines(
        each(lambda path: read_jsonl(path, SwiftRow)),
        {"tools": "[]", "messages": [{"role": "user", "content": "Who?"}]},
        {
            "tools": {"tools": []},
            "messages.0.role": {"messages": [{"role": "tool", "content": "x"}]},
            "messages.0.tool_call_id": {
                "messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]
            },
        },
    ),
    "predictions": Lines(
        score_predictions,
        {**QUESTION, "pred": "x"},
        {
            "pred": {"pred": ["x"]},
            "golden_answers": {"golden_answers": []},
            "sample": {"sample": "second"},
            "metadata.question_type": {"metadata": {"question_type": []}},
        },
    ),
    "results of other systems": Lines(
        lambda path: import_results(path, path.with_name("out.jsonl"), "m"),
        {**QUESTION, "output": {"pred": "x"}},
        {"output": {"output": "x"}, "output.pred": {"output": {"pred": ["x"]}}},
    ),
    "IFEval prompts": Lines(
        read_prompts,
        {
            "key": 1,
            "prompt": "Say it.",
            "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{}],
        },
        {"key": {"key": "one"}, "kwargs": {"kwargs": {}}},
    ),
    "RL log": Lines(
        lambda path: read_rl_run(path.parent),
        {"step": 0, "f1": 0.5},
        {"step": {"step": -1}, "f1": {"f1": "high"}},
        "train_log.jsonl",
    ),
    "pages": Lines(
        PageFile,
        {"url": "u", "contents": "x"},
        {"url": {"url": None}, "contents": {"contents": 7}},
    ),
}
BROKEN_LINES = [(name, field) for name, lines in LINES.items() for field in lines.breaks]


@pytest.mark.parametrize(
    ("name", "field"), BROKEN_LINES, ids=[" ".join(pair) for pair in BROKEN_LINES]
)
def test_a_row_that_does_not_fit_is_named_by_file_line_and_field(
    tmp_path: Path, name: str, field: str
) -> None:
    lines = LINES[name]
    path = tmp_path / lines.name
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"{json.dumps(lines.row)}\n\n{json.dumps(lines.row | lines.breaks[field])}\n",
        encoding="utf-8",
    )
    with pytest.raises(RecordError) as caught:
        lines.read(path)
    assert (caught.value.path, caught.value.line, caught.value.field) == (str(path), 3, field)
    assert str(caught.value).startswith(f"{path}, line 3: field {field!r}: ")


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_no_json_object_is_named_by_file_and_line(tmp_path: Path, name: str) -> None:
    lines = LINES[name]
    path = tmp_path / lines.name
    path.parent.mkdir(exist_ok=True)
    for line in (json.dumps(lines.row)[:-2], "[1]", '"\\ud800"', "\ufeff{}", "NaN"):
        path.write_text(f"{json.dumps(lines.row)}\n{line}\n", encoding="utf-8")
        with pytest.raises(RecordError) as caught:
            lines.read(path)
        assert (caught.value.path, caught.value.line) == (str(path), 2)


@dataclass(frozen=True)
class Whole:
    """A file that is one JSON document: how it is read, one that does not fit, and the field that is named."""

    read: Callable[[Path], object]
    value: object
    field: str


def as_record(model: type[BaseModel]) -> Callable[[Path], object]:
    """Reads a file of this model."""
    return lambda path: read_record(path, model)


DOCUMENTS = {
    "f1_table.json": Whole(as_record(F1Table), {"schema_version": 99}, "schema_version"),
    "rows.json": Whole(as_record(ModelEvaluation), {"schema_version": 99}, "schema_version"),
    "scores.json": Whole(as_record(IfevalScore), {"schema_version": 99}, "schema_version"),
    "lost_points.json": Whole(as_record(ExplainReport), {"schema_version": 99}, "schema_version"),
    "metrics.json": Whole(
        as_record(Figures), {"f1": {"musique": {"sft": "high"}}}, "f1.musique.sft"
    ),
    "retrieval.json": Whole(
        as_record(RetrievalReport), {"world": {"bm25": {"mrr": -1}}}, "world.bm25.mrr"
    ),
    "filter.json": Whole(as_record(FilterReport), {"trajectories": 0}, "trajectories"),
    "manifest.json": Whole(lambda path: read_manifest(path.parent), {"chunks": ""}, "chunks"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_that_does_not_fit_is_named_by_file_and_field(tmp_path: Path, name: str) -> None:
    document, path = DOCUMENTS[name], tmp_path / name.partition(" ")[0]
    path.write_text(json.dumps(document.value), encoding="utf-8")
    with pytest.raises(ArtifactError, match=rf"{re.escape(str(path))}.*field '{document.field}': "):
        document.read(path)


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize(
    "content", [b"", b'{"rows": [', b'{"a": "\xff"}', b"[" * 100_000], ids=range(4)
)
def test_a_document_that_is_no_json_is_named_by_file(
    tmp_path: Path, name: str, content: bytes
) -> None:
    document, path = DOCUMENTS[name], tmp_path / name.partition(" ")[0]
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=re.escape(str(path))):
        document.read(path)


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        (
            "{memory_gib: much, disk_gib: 1, gpu_memory_gib: 0, java: false}",
            r"params\.yaml, requires\.memory_gib: ",
        ),
        (
            "{memory_gib: 1, disk_gib: 1, gpu_memory_gib: 0, java: false, keys: [], max_hours: 1, cores: 2}",
            r"params\.yaml, requires\.cores: ",
        ),
        ("none", r"params\.yaml, requires: "),
    ],
)
def test_needs_of_a_profile_that_do_not_fit_are_named_by_file_and_field(
    tmp_path: Path, requires: str, message: str
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(
        f"profile: tiny\npython: {{core: python}}\nrequires: {requires}\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError, match=message):
        load_profile(path).section("requires", Requirements)


def test_a_profile_without_needs_is_named(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("profile: tiny\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"params\.yaml has no 'requires'"):
        find_profile(tmp_path, "tiny").section("requires", Requirements)


TURN = {"role": "assistant", "content": "x"}
RL_ROW = {
    "data_source": "d",
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["x"]}},
    "extra_info": {"split": "train", "index": 0},
}
FRAMES: list[tuple[str, Row, Row]] = [
    ("ms-swift", {"tools": "[]", "messages": [TURN]}, {"messages": [TURN | {"role": "user"}]}),
    ("trl", {"tools": [], "messages": [TURN]}, {"messages": [TURN | {"content": ""}]}),
    ("search-r1", {**RL_ROW, "prompt": [{"role": "user", "content": "x"}]}, {"data_source": ""}),
    ("search-r1", {**RL_ROW, "prompt": [{"role": "user", "content": "x"}]}, {"prompt": [TURN]}),
    (
        "verl",
        {
            **RL_ROW,
            "prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}],
        },
        {"reward_model": {"style": "rule", "ground_truth": {"target": []}}},
    ),
    (
        "rlinf",
        {"prompt": [{"role": "user", "content": "Who?"}], "solutions": ["x"]},
        {"solutions": []},
    ),
]


@pytest.mark.parametrize(
    ("to", "row", "change"), FRAMES, ids=[f"{to} {next(iter(change))}" for to, _, change in FRAMES]
)
def test_a_row_that_another_trainer_would_refuse_is_named_by_file_row_and_field(
    to: str, row: Row, change: Row
) -> None:
    check_frame(pd.DataFrame([row, row]), SCHEMAS[to], "rows")
    with pytest.raises(CheckFailedError, match=f"^rows, row 2, field '{next(iter(change))}': "):
        check_frame(pd.DataFrame([row, row | change]), SCHEMAS[to], "rows")
