"""Write the F1 table, metrics, plots and the page of one profile."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run
from deepsearch_rl.evaluate.explain.sources import Searched
from deepsearch_rl.evaluate.report.write_report import (
    ReportConfig,
    Sources,
    write_report,
)

STAGE = Stage(
    sections=("seed", "report", "models", "rl", "datasets", "evaluate", "download"),
    packages=("core", "data", "chat", "search", "train", "evaluate"),
    inputs=(
        "data/{profile}/evaluate",
        "data/{profile}/ifeval",
        "data/{profile}/questions",
        "data/{profile}/index",
        "data/{profile}/chunks",
        "models/{profile}/rl_adapter",
        "reports/{profile}/retrieval.json",
        "reports/{profile}/filter.json",
    ),
)


def main(profile: Profile) -> None:
    """Write ``reports/<profile>/`` from what the stages before left behind."""
    models = profile.value("models")
    split = profile.value("evaluate")["split"]
    config = profile.section("report", ReportConfig)

    questions: dict[str, Path] = {}
    for name in profile.value("datasets"):
        questions[name] = profile.data / "questions" / name / f"{split}.jsonl"

    rl_runs: dict[str, Path] = {}
    # A profile without RL has no such section
    for start in profile.values.get("rl", {}).get("starts", ()):
        rl_runs[start] = profile.models / "rl_adapter" / start

    evaluations: dict[str, Path] = {}
    ifeval: dict[str, Path] = {}
    for model in models:
        evaluations[model] = profile.data / "evaluate" / model
        scores = profile.data / "ifeval" / model
        if scores.is_dir():
            ifeval[model] = scores

    funnel = profile.reports / "filter.json"
    searched = Searched(profile.data / "index", profile.data / "chunks")
    sources = Sources(
        evaluate=evaluations,
        ifeval=ifeval,
        rl=rl_runs,
        retrieval=profile.reports / "retrieval.json",
        filter=funnel if funnel.is_file() else None,
        questions=questions,
        origins=question_origins(profile.value("download"), split),
        searched=searched if config.search_index else None,
    )
    write_report(profile.name, sources, config, profile.value("seed"), profile.reports)


def question_origins(download: Mapping[str, Any], split: str) -> dict[str, str]:
    """Return hub repository and split of every question set that is fetched from a hub, ``owner/name/split``."""
    if download["source"] != "hub":
        return {}
    repositories = download["hub"]["repositories"]
    origins: dict[str, str] = {}
    for name, sources in download["folder"]["questions"].items():
        for source in sources:
            # A repository is fetched into a folder of its name in this section
            folder = Path(source["path"]).parts[0]
            if split in source["splits"] and folder in repositories:
                origins[name] = f"{repositories[folder]['repository']}/{split}"

    return origins


if __name__ == "__main__":
    run(STAGE, main)
