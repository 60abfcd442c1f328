"""Write the F1 table, metrics, plots and the page of one profile."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run
from deepsearch_rl.evaluate.explain.sources import Searched
from deepsearch_rl.evaluate.report.write_report import (
    ReportConfig,
    SearchedConfig,
    Sources,
    TrainedConfig,
    write_report,
)

STAGE = Stage(
    sections=("seed", "report", "models", "rl", "datasets", "evaluate", "trained", "download"),
    packages=("core", "data", "chat", "search", "train", "evaluate"),
    inputs=(
        "data/{profile}/evaluate",
        "data/{profile}/questions",
        "reports/{profile}/retrieval.json",
        "{report.searched.index}",
        "{report.searched.chunks}",
        "{trained.models}",
        "{trained.filter}",
        "{trained.ifeval}",
    ),
)


def main(profile: Profile) -> None:
    """Write ``reports/<profile>/`` from what the stages before left behind."""
    models = profile.value("models")
    starts = profile.value("rl")["starts"]
    split = profile.value("evaluate")["split"]
    trained = profile.section("trained", TrainedConfig)
    config = profile.section("report", ReportConfig)

    questions: dict[str, Path] = {}
    for name in profile.value("datasets"):
        questions[name] = profile.data / "questions" / name / f"{split}.jsonl"

    rl_runs: dict[str, Path] = {}
    for start in starts:
        rl_runs[start] = trained.models / "rl_adapter" / start

    evaluations: dict[str, Path] = {}
    ifeval: dict[str, Path] = {}
    for model in models:
        evaluations[model] = profile.data / "evaluate" / model
        # Of a model behind an endpoint there may be none
        if (trained.ifeval / model).is_dir():
            ifeval[model] = trained.ifeval / model

    sources = Sources(
        evaluate=evaluations,
        ifeval=ifeval,
        rl=rl_runs,
        retrieval=profile.reports / "retrieval.json",
        filter=trained.filter,
        questions=questions,
        origins=question_origins(profile.value("download"), split),
        searched=searched_again(config.searched, profile.data / "evaluate"),
    )
    write_report(profile.name, sources, config, profile.value("seed"), profile.reports)


def searched_again(config: SearchedConfig, evaluations: Path) -> Searched | None:
    """Return the indexes to search once more; None where the profile names its evaluations in their place."""
    if config.index == evaluations:
        return None
    return Searched(config.index, config.chunks)


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
