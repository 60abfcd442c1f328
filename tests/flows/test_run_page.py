"""The page of a run, from outputs in the shape that stages give them."""

import json
from pathlib import Path
from typing import Any

import pytest
from prefect.states import Completed

from flows.graph import Stage
from flows.run_page import key_figures, run_page

LOG = [
    {"step": 1, "reward": 0.1, "f1": 0.2, "dev_f1": None},
    {"step": 2, "reward": 0.25, "f1": 0.5, "dev_f1": 0.75},
]


def stage(name: str, *outputs: str) -> Stage:
    return Stage(name, name, frozenset(), outputs, changed=False)


def row(dataset: str, f1: float, **others: Any) -> dict[str, Any]:
    score = {
        "n": 4,
        "em": f1,
        "f1": f1,
        "f1_low": 0.0,
        "f1_high": 1.0,
        "acc": f1,
        "precision": f1,
        "recall": f1,
    }
    key = {
        "model": "sft",
        "checkpoint": "c",
        "dataset": dataset,
        "corpus": "c",
        "prompt": "p",
        "top_k": 3,
        "seed": 1,
    }
    setting = {
        "chunk_size": 0,
        "temperature": 0.7,
        "samples": 1,
        "mean_rounds": 1.0,
        "mean_tool_calls": 1.0,
    }
    rest = {
        "failures": {},
        "pass_at": {"1": f1},
        "generated": True,
        "constant": {"answer": "yes", "f1": 0.1, "em": 0.1},
        "types": {},
    }
    return score | key | setting | rest | others


def test_key_figures_are_the_last_line_of_a_log_or_fields_of_a_report(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "train_log.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in LOG)
    )
    (tmp_path / "filter.json").write_text(
        json.dumps({"rows": 1017, "f1": 0.7279, "searches": 1.742, "other": 3})
    )
    assert (
        key_figures(tmp_path, stage("rl@sft", "adapter")) == "dev_f1 0.750; f1 0.500; reward 0.250"
    )
    assert (
        key_figures(tmp_path, stage("filter", "rows", "filter.json"))
        == "rows 1017; f1 0.728; searches 1.742"
    )
    assert key_figures(tmp_path, stage("sft", "nowhere")) == ""
    (tmp_path / "stopped").mkdir()
    (tmp_path / "stopped" / "train_log.jsonl").touch()
    assert key_figures(tmp_path, stage("sft", "stopped")) == ""
    assert key_figures(tmp_path, stage("chunk", "adapter")) == ""


def test_a_figure_that_the_last_line_of_a_log_does_not_have_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "train_log.jsonl").write_text(json.dumps(LOG[0]) + "\n")
    assert key_figures(tmp_path, stage("rl@sft", ".")) == "f1 0.200; reward 0.100"


def test_an_evaluation_shows_f1_of_the_main_run_of_every_set(tmp_path: Path) -> None:
    rows = [
        row("multihoprag", 0.5),
        row("multihoprag", 0.25, temperature=0.0),
        row("musique", 0.125),
    ]
    record = {"model": "sft", "seed": 1, "settings_sha256": "s", "inputs": {}, "rows": rows}
    (tmp_path / "rows.json").write_text(json.dumps(record))
    assert (
        key_figures(tmp_path, stage("evaluate@sft", ".")) == "F1 0.500 multihoprag, 0.125 musique"
    )


@pytest.mark.parametrize(
    ("mlflow", "way"),
    [
        ("http://here:5000", "<http://here:5000>"),
        ("http://me:hidden@here:5000", "<http://here:5000>"),
        ("http://me:hid/den@here:5000", "cannot be read"),
        ("sqlite:///x", "`make ui`"),
    ],
)
def test_a_page_without_a_report_has_the_stages_alone(
    tmp_path: Path, mlflow: str, way: str
) -> None:
    (tmp_path / "dvc.yaml").touch()
    graph = {name: stage(name) for name in ("chunk", "index")}
    lines = run_page(
        tmp_path, "tiny", graph, {"chunk": Completed(name="Cached")}, mlflow
    ).splitlines()
    assert way in lines[0]
    assert lines[-2:] == ["| chunk | Cached |  |", "| index | not started |  |"]
