"""What a run of MLflow is called: profile and model or stage, what differs from the committed settings, the commit.

    tiny · f2f8c1b                                          a report of the committed settings
    tiny/sft · rl.group_size=16 · more-rollouts · f2f8c1b   a model of a DVC experiment's report

Everything but the first part is in the run's tags: ``changes``, ``dvc.experiment`` and
``git.commit``. Where a run has that name already, its successor's ends with the time.
"""

import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import yaml
from mlflow.tracking import MlflowClient
from pydantic import JsonValue

from deepsearch_rl.core.redaction import is_secret, mask_users

CHANGES_TAG = "changes"
EXPERIMENT_TAG = "dvc.experiment"
COMMIT_TAG = "git.commit"
SEPARATOR = " · "
MAX_PARAM_CHARACTERS = 6000
MAX_VALUE_CHARACTERS = 24
MAX_CHANGES_CHARACTERS = 80
MAX_PART_CHARACTERS = 60
COMMIT_CHARACTERS = 7
_NO_QUOTES = str.maketrans("", "", "'\"`")


def run_name(subject: str, tags: Mapping[str, str]) -> str:
    """Return the name of the run of a report (``tiny``), of a model (``tiny/sft``) or of a stage (``tiny/rl@sft``).

    It has at most 216 characters; MLflow's database takes 250. It has no quotes, because MLflow's
    searches know no escapes.
    """
    commit = tags.get(COMMIT_TAG, "unknown")
    parts = [
        _shortened(subject, MAX_PART_CHARACTERS),
        tags.get(CHANGES_TAG, ""),
        _shortened(tags.get(EXPERIMENT_TAG, ""), MAX_PART_CHARACTERS),
        "" if commit == "unknown" else commit[:COMMIT_CHARACTERS],
    ]
    return SEPARATOR.join(filter(None, parts)).translate(_NO_QUOTES)


def time_to_add(client: MlflowClient, experiment: str, name: str, time_ms: int) -> str:
    """Return what tells a new run from those of the same name: its time, or nothing where there are none."""
    if not client.search_runs([experiment], f"attributes.run_name = '{name}'", max_results=1):
        return ""
    return f"{SEPARATOR}{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def committed_params(path: Path) -> dict[str, JsonValue]:
    """Return the values that a params.yaml has in the commit that is checked out; empty where it is not in git."""
    command = ["git", "show", f"HEAD:./{path.name}"]
    folder = path.resolve().parent
    committed = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, check=False
    ).stdout
    return yaml.load(committed, yaml.CSafeLoader) or {}


def describe_changes(params: Mapping[str, JsonValue], committed: Mapping[str, JsonValue]) -> str:
    """Return the settings that differ from the committed ones, ``rl.group_size=16, seed=1``, in at most 80 characters.

    It is empty where none differs, or nothing is committed. Secrets are left out.
    """
    changes = changed_settings(params, committed)
    if not committed or not changes:
        return ""

    texts: list[str] = []
    for name, value in changes.items():
        short_value = _shortened(value.translate(_NO_QUOTES), MAX_VALUE_CHARACTERS)
        texts.append(f"{name}={short_value}")

    # As many as there is room for, and how many are left
    for count in range(len(texts), 0, -1):
        parts = texts[:count]
        if count < len(texts):
            parts.append(f"{len(texts) - count} more")
        text = ", ".join(parts)
        if len(text) <= MAX_CHANGES_CHARACTERS:
            return text

    return f"settings changed: {len(texts)}"


def changed_settings(
    params: Mapping[str, JsonValue], before: Mapping[str, JsonValue]
) -> dict[str, str]:
    """Return the settings, as :func:`flatten` names them, that have another value in ``before``, or none there."""
    values_before = dict(flatten(before))
    changes: dict[str, str] = {}
    for name, value in flatten(params):
        if values_before.get(name) != value:
            changes[name] = value

    return changes


def flatten(params: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (dotted name, text), in order, without secrets.

    A setting that is named like a secret is left out, and so are user and password of an address in
    any text.
    """
    for name, value in sorted(params.items()):
        if is_secret(name):
            continue
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", mask_users(str(_without_secrets(value)))[:MAX_PARAM_CHARACTERS]


def _without_secrets(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_without_secrets(entry) for entry in value]
    if isinstance(value, dict):
        result: dict[str, JsonValue] = {}
        for name, entry in value.items():
            if not is_secret(name):
                result[name] = _without_secrets(entry)

        return result

    return value


def _shortened(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[: characters - 1]}…"
