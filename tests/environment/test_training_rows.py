"""Rows for Search-R1 and veRL: data sources for which the trainers have a reward."""

import importlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ConfigError

Line = dict[str, Any]


QUESTION = {"id": "q", "question": "Who?", "golden_answers": ["x"]}


def write(path: Path, *lines: Line) -> Path:
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def run(*arguments: object) -> str:
    """What a command prints."""
    result = CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


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
