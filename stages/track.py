"""Log a finished report to MLflow: figures, training curves, predictions and traces.

The store is the server that MLFLOW_TRACKING_URI names, or mlflow.db in the project's folder. A server
that is away fails the stage, so the next `dvc repro` tries again; the report itself is complete.
"""

from pathlib import Path

from deepsearch_rl.core.files import read_record, write_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run
from deepsearch_rl.evaluate.tables import F1Table
from deepsearch_rl.track.contents import Results, TrackConfig
from deepsearch_rl.track.report import log_report

# Evaluated model -> folder of the profile's models whose train_log.jsonl is its training curve
TRAIN_LOGS = {
    "base": "base",
    "sft": "sft_adapter",
    "rl": "rl_adapter/base",
    "sft_rl": "rl_adapter/sft",
}

STAGE = Stage(
    sections=("seed", "track", "evaluate"),
    packages=("core", "chat", "data", "search", "server", "agent", "train", "evaluate", "track"),
    inputs=(
        "reports/{profile}/f1_table.json",
        "reports/{profile}/f1_table.md",
        "reports/{profile}/f1_table.csv",
        "reports/{profile}/metrics.json",
        "reports/{profile}/lost_points.json",
        "reports/{profile}/index.html",
        "data/{profile}/evaluate",
        "data/{profile}/questions",
        "models/{profile}/base",
        "models/{profile}/sft_adapter",
        "models/{profile}/rl_adapter",
    ),
)


def main(profile: Profile) -> None:
    """Log the report, and write how much that was to ``reports/<profile>/track.json``."""
    config = profile.section("track", TrackConfig)
    tracked = log_report(_results(profile), config, profile.value("seed"))
    write_json(profile.reports / "track.json", tracked.model_dump(mode="json"))


def _results(profile: Profile) -> Results:
    table = read_record(profile.reports / "f1_table.json", F1Table)
    evaluations: dict[str, Path] = {}
    logs: dict[str, Path] = {}
    for model in sorted({row.model for row in table.rows}):
        evaluations[model] = profile.data / "evaluate" / model
        # Models of other profiles, and those behind endpoints, have no log here
        log = profile.models / TRAIN_LOGS.get(model, model) / "train_log.jsonl"
        if log.is_file():
            logs[model] = log

    weights: dict[str, str] = {}
    for model, folder in profile.values["models"].items():
        if not Path(folder, "endpoint.json").is_file():
            weights[model] = folder

    prompts = {variant["prompt"] for variant in profile.value("evaluate")["variants"].values()}
    attached: list[Path] = []
    # A prompt that optimize_prompt made is a folder; one of src/deepsearch_rl/prompts is a file
    for prompt in sorted(filter(None, prompts)):
        attached += sorted(Path(prompt).glob("*.json"))

    return Results(
        profile=profile.name,
        reports=profile.reports,
        evaluations=evaluations,
        train_logs=logs,
        weights=weights,
        params=profile.values,
        attached=tuple(attached),
    )


if __name__ == "__main__":
    run(STAGE, main)
