"""The page of a flow run in Prefect's UI: where to look next, every stage with its key figures, the F1 table."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State

from deepsearch_rl.commands.summary import read_table
from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.evaluation.scoring.f1_row import ModelEvaluation
from deepsearch_rl.files import read_json
from flows.graph import Graph, Stage

KEY_FIGURES = {
    "prepare_model": ("train_log.jsonl", ["loss", "accuracy"]),
    "filter": ("filter.json", ["rows", "f1", "searches"]),
    "sft": ("train_log.jsonl", ["loss", "token_acc", "eval_dev_f1"]),
    "rl": ("train_log.jsonl", ["reward", "f1", "dev_f1"]),
    "evaluate": ("rows.json", []),
    "ifeval": ("scores.json", ["prompt_strict", "inst_strict"]),
}
"""Family of a stage -> the file among its outputs that holds its key figures, and their names there."""


def key_figures(root: Path, stage: Stage) -> str:
    """Return the key figures of a stage from its outputs, ``loss 0.769; token_acc 0.837``; empty where it has none.

    Of a log, they are those of the last line; of an evaluation, those of every question set and setting.
    """
    file, names = KEY_FIGURES.get(stage.family, ("", []))
    outputs = [root / output for output in stage.outputs]
    path = next((path for path in [*outputs, *(folder / file for folder in outputs)] if path.name == file), Path())
    if not path.is_file():
        return ""
    if path.suffix == ".jsonl":
        record = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    else:
        record = read_json(path)
    if stage.family == "evaluate":
        record = {f"F1 {row.run_name}": row.f1 for row in ModelEvaluation.model_validate(record).rows}
        names = list(record)
    values = ((name, record[name]) for name in names if name in record)
    return "; ".join(f"{name} {value}" if isinstance(value, int) else f"{name} {value:.3f}" for name, value in values)


def run_page(root: Path, profile: str, graph: Graph, states: Mapping[str, State[Any]], mlflow: str | None) -> str:
    """Return the page as Markdown.

    Args:
        root: the folder that the run worked in.
        profile: tiny, or a folder of profiles/.
        graph: the stages of the run.
        states: final state of every stage that started; the others are listed as not started.
        mlflow: address of MLflow's server; None for the local store.
    """
    lines = ["| stage | state | key figures |", "| --- | --- | --- |"]
    for name, stage in graph.items():
        state = states.get(name)
        done = state is not None and state.is_completed()
        lines.append(
            f"| {name} | {state.name if state else 'not started'} | {key_figures(root, stage) if done else ''} |"
        )
    report = root / "reports" / profile / "index.html"
    ways = [
        f"- report with plots and rollouts: `{report}`" if report.is_file() else "",
        f"- MLflow: <{mlflow}>" if mlflow and mlflow.startswith("http") else "- MLflow: `make ui` serves the store",
    ]
    parts = ["\n".join(filter(None, ways)), "\n".join(lines)]
    with suppress(ArtifactError):  # a run of the first stages alone has no table
        parts.append(read_table(root, profile))
    return "\n\n".join(parts)
