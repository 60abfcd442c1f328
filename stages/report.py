"""Write the F1 table, metrics, plots and the page of one profile."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage_entry import run
from deepsearch_rl.evaluation.report.write_report import (
    ReportConfig,
    SearchedConfig,
    Sources,
    TrainedConfig,
    write_report,
)
from deepsearch_rl.explain.causes.sources import Searched


def main(profile: Profile) -> None:
    """Write ``reports/<profile>/`` from what the stages before left behind."""
    models = profile.value("models")
    starts = profile.value("rl")["starts"]
    split = profile.value("evaluate")["split"]
    trained = profile.section("trained", TrainedConfig)
    config = profile.section("report", ReportConfig)
    evaluations = profile.data / "evaluate"
    sources = Sources(
        evaluate={model: evaluations / model for model in models},
        ifeval={
            model: trained.ifeval / model for model in models if (trained.ifeval / model).is_dir()
        },
        rl={start: trained.models / "rl_adapter" / start for start in starts},
        retrieval=profile.reports / "retrieval.json",
        filter=trained.filter,
        questions={
            name: profile.data / "questions" / name / f"{split}.jsonl"
            for name in profile.value("datasets")
        },
        origins=question_origins(profile.value("download"), split),
        searched=searched_again(config.searched, evaluations),
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
    repositories = {
        folder: fetched["repository"] for folder, fetched in download["hub"]["repositories"].items()
    }
    folders = {
        name: Path(source["path"]).parts[0]
        for name, sources in download["folder"]["questions"].items()
        for source in sources
        if split in source["splits"]
    }
    return {
        name: f"{repositories[folder]}/{split}"
        for name, folder in folders.items()
        if folder in repositories
    }


if __name__ == "__main__":
    run(main)
