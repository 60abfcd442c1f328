"""Send a finished report, its training curves and its settings to MLflow.

The store is SQLite under mlruns/ of the project; MLFLOW_TRACKING_URI names a server instead.
"""

import os
from pathlib import Path

from deepsearch_rl.evaluation.tables import read_f1_table, read_metrics
from deepsearch_rl.files import read_jsonl, write_json
from deepsearch_rl.tracking import CurvePoint, FinishedReport, TrackConfig, local_store, track
from stages.entry import Params, run
from stages.provenance import read_provenance

TRAIN_LOGS = {
    "base": "base",
    "sft": "sft_adapter",
    "rl": "rl_adapter/base",
    "sft_rl": "rl_adapter/sft",
}
"""Evaluated model -> folder of models/<profile> whose train_log.jsonl is its training curve."""
ATTACHED = ("f1_table.md", "f1_table.csv", "metrics.json")


def main(params: Params) -> None:
    """Read the report and send it."""
    config = params.section("track", TrackConfig)
    table = read_f1_table(params.reports / "f1_table.json")
    logs = {row.model: params.models / TRAIN_LOGS[row.model] for row in table.rows if row.model in TRAIN_LOGS}
    curves = {model: list(read_jsonl(folder / "train_log.jsonl", CurvePoint)) for model, folder in logs.items()}
    ifeval = read_metrics(params.reports / "metrics.json").get("ifeval", {})
    report = FinishedReport(table, ifeval, curves, [params.reports / name for name in ATTACHED])
    uri = os.environ.get("MLFLOW_TRACKING_URI") or local_store(Path("mlruns"))
    tracked = track(report, read_provenance(params.path, "track"), uri, config)
    write_json(params.reports / "track.json", tracked.model_dump(mode="json"))


if __name__ == "__main__":
    run(main)
