"""The page of a flow run in Prefect's UI: where to look next, and every stage with its key figures.

Prefect cuts off what does not fit into a column: the figure that decides comes first, and there are
few.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State

from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.redaction import public_address
from deepsearch_rl.evaluate.f1_row import ModelEvaluation
from flows.graph import Graph, Stage

# Family of a stage -> the file among its outputs that holds its key figures, and their names
# there
KEY_FIGURES = {
    "prepare_model": ("train_log.jsonl", ["accuracy", "loss"]),
    "filter": ("filter.json", ["rows", "f1", "searches"]),
    "sft": ("train_log.jsonl", ["eval_dev_f1", "token_acc", "loss"]),
    "rl": ("train_log.jsonl", ["dev_f1", "f1", "reward"]),
    "evaluate": ("rows.json", []),
    "ifeval": ("scores.json", ["prompt_strict", "inst_strict"]),
}


def report_page(root: Path, profile: str) -> Path:
    """Return the path of a profile's report."""
    return root.resolve() / "reports" / profile / "index.html"


def key_figures(root: Path, stage: Stage) -> str:
    """Return the key figures of a stage from its outputs, ``token_acc 0.837; loss 0.769``; empty where it has none.

    Of a log, they are those of the last line; of an evaluation, F1 of every question set's main
    run.
    """
    file, names = KEY_FIGURES.get(stage.family, ("", []))
    path = _output_file(root, stage, file)
    if not path.is_file():
        return ""
    if path.suffix == ".jsonl":
        lines = path.read_text(encoding="utf-8").splitlines()
        # A training that was stopped before its first step has none
        record = json.loads(lines[-1]) if lines else {}
    else:
        record = read_json(path)

    if stage.family == "evaluate":
        return _main_f1(ModelEvaluation.model_validate(record))

    figures: list[str] = []
    for name in names:
        value = record.get(name)
        if value is not None:
            figures.append(f"{name} {value}" if isinstance(value, int) else f"{name} {value:.3f}")

    return "; ".join(figures)


def _output_file(root: Path, stage: Stage, file: str) -> Path:
    """Return the output of a stage with this name, or the place of that name in its first folder."""
    for output in stage.outputs:
        if Path(output).name == file:
            return root / output
    first_folder = stage.outputs[0] if file and stage.outputs else ""
    return root / first_folder / file


def _main_f1(evaluation: ModelEvaluation) -> str:
    """Return F1 of an evaluation's main runs, ``F1 0.790 multihoprag, 0.270 musique``, or of all where none is main."""
    rows = [row for row in evaluation.rows if not row.kind] or evaluation.rows
    return "F1 " + ", ".join(f"{row.f1:.3f} {row.run_name}" for row in rows)


def run_page(
    root: Path, profile: str, graph: Graph, states: Mapping[str, State[Any]], mlflow: str | None
) -> str:
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
        # Of a stage that failed, the outputs are those of an earlier run
        is_completed = state is not None and state.is_completed()
        figures = key_figures(root, stage) if is_completed else ""
        lines.append(f"| {name} | {state.name if state else 'not started'} | {figures} |")

    ways: list[str] = []
    report = report_page(root, profile)
    if report.is_file():
        ways.append(f"- report with plots and rollouts: `{report}`")
    if mlflow and mlflow.startswith("http"):
        # Without user and password: others read the page
        ways.append(f"- MLflow: <{public_address(mlflow) or 'its address cannot be read'}>")
    else:
        ways.append("- MLflow: `make ui` serves the store")
    return "\n".join([*ways, "", *lines])
