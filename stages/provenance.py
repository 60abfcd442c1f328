"""Where a profile's results come from, read from its dvc.lock and from git."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.core.profile import PARAMS
from deepsearch_rl.track.bundle import DatasetDigest, Provenance
from deepsearch_rl.track.run_names import (
    CHANGES_TAG,
    COMMIT_TAG,
    EXPERIMENT_TAG,
    committed_params,
    describe_changes,
)

DATASET_STAGES = ("download", "chunk")
REPORT_STAGE = "report"
MODEL_STAGE = "evaluate"


def read_provenance(params_path: Path, stage: str) -> Provenance:
    """The settings with which the stages ran and the digests of the data that they made, as DVC recorded them.

    ``stage`` is the stage that asks: its own entry in dvc.lock is left out, for it is written when
    that stage ends. The tag ``dvc.stage`` names the stage that made what a run shows: the table, or
    one model's answers. ``changes`` are the settings that differ from the profile's committed ones,
    ``dvc.experiment`` is the experiment that is running.

    Raises:
        ArtifactError: there is no dvc.lock, so the stage was not started by DVC.
        ConfigError: git refuses to say which commit this is.
    """
    lock = params_path.with_name("dvc.lock")

    if not lock.is_file():
        raise ArtifactError(
            f"{lock} does not exist: the stage {stage} reads it, and `dvc repro` writes it."
        )

    folder = lock.resolve().parent
    stages = yaml.load(lock.read_text(encoding="utf-8"), yaml.CSafeLoader)["stages"]
    before = {name: entry for name, entry in stages.items() if name != stage}
    params = _params(before, params_path.name)
    # With ``-dirty`` where tracked files differ from the commit; --exclude, because a tag says less
    commit = _git(folder, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    tags = {
        "dvc.stage": REPORT_STAGE,
        "dvc.lock": sha256_json(before),
        COMMIT_TAG: commit or "unknown",
        CHANGES_TAG: describe_changes(params, committed_params(params_path)),
        EXPERIMENT_TAG: os.environ.get("DVC_EXP_NAME", ""),
    }
    return Provenance(
        tags=_with_values(tags),
        model_tags=dict(_model_tags(before, params.get("models", {}))),
        params=params,
        defaults=yaml.load(_git(folder, "show", f"HEAD:{PARAMS}"), yaml.CSafeLoader) or {},
        datasets=_datasets(before),
    )


def _with_values(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags without the empty ones."""
    result: dict[str, str] = {}
    for name, value in tags.items():
        if value:
            result[name] = value

    return result


def _git(folder: Path, *arguments: str) -> str:
    """Return what a git command prints; nothing outside git."""
    result = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, cwd=folder, check=False
    )
    return result.stdout.strip()


def _params(stages: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return every section as a stage recorded it: the report, else an evaluation of its models, else any other.

    After a partial run the entry of another stage may be older than the figures. ``file`` is the
    name of the params file: stages record versions of packages as well, under the same names.
    """
    models = _sections(stages.get(REPORT_STAGE, {}), file).get("models", {})
    preferred = [f"{MODEL_STAGE}@{model}" for model in models]
    preferred.append(REPORT_STAGE)
    others = [name for name in stages if name not in preferred]

    # The last one that has a section wins
    sections: dict[str, Any] = {}
    for name in [*others, *preferred]:
        sections |= _sections(stages.get(name, {}), file)

    return sections


def _sections(entry: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return the sections that an entry of dvc.lock has from a file of this name."""
    sections: dict[str, Any] = {}
    for path, values in entry.get("params", {}).items():
        if Path(path).name == file:
            sections |= values

    return sections


def _datasets(stages: Mapping[str, Any]) -> dict[str, DatasetDigest]:
    datasets: dict[str, DatasetDigest] = {}
    for name in DATASET_STAGES:
        for out in stages.get(name, {}).get("outs", []):
            path = out["path"]
            datasets[Path(path).name] = DatasetDigest(path=path, digest=out["md5"])

    return datasets


def _model_tags(
    stages: Mapping[str, Any], folders: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """By model: the stage that evaluated it, and the folder of its weights, or of its endpoint, with DVC's digest."""
    for name, entry in stages.items():
        kind, _, model = name.partition("@")
        if kind == MODEL_STAGE and model:
            digests = {dep["path"]: dep.get("md5", "") for dep in entry.get("deps", [])}
            folder = folders.get(model, "")
            tags = {"dvc.stage": name, "dvc.weights": folder}
            tags["dvc.weights.md5"] = digests.get(folder, "")
            yield model, tags
