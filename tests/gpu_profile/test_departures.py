"""What the gpu profile departs from: each departure has a reason, and options that give the published value."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.utils.cli_parse import to_path_overrides
from dvc.utils.hydra import apply_overrides

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.search.build import IndexSection
from deepsearch_rl.train.art.unsloth import require_honoured
from deepsearch_rl.train.rl.rl_config import RlConfig
from tools.departures import (
    PROFILE,
    Departure,
    Published,
    Value,
    departures,
    read_published,
    value_at,
)

DEV_QUESTIONS = 100


@pytest.fixture
def published() -> Published:
    return read_published()


@pytest.fixture
def params() -> dict[str, Any]:
    return yaml.safe_load((PROFILE / "params.yaml").read_text())


def test_another_value_without_a_reason_is_refused(
    published: Published, params: dict[str, Any]
) -> None:
    params["sft"]["lora_rank"] = 8
    with pytest.raises(ConfigError, match=r"no reason why sft\.lora_rank is 8 and not 64"):
        list(departures(published, params))
    del params["sft"]["lora_rank"]
    with pytest.raises(ConfigError, match=r"has no sft\.lora_rank, which published\.yaml names"):
        list(departures(published, params))


def changes(departure: Departure) -> list[str]:
    """What the options of a departure change in the gpu profile's params.yaml, and nowhere else."""
    words = shlex.split(departure.override.strip("`"))
    by_file = to_path_overrides(word for word in words if word not in ("-S", "-"))
    assert by_file.keys() <= {"profiles/gpu/params.yaml"}
    return [change for each in by_file.values() for change in each]


@pytest.mark.slow
def test_the_options_of_a_departure_give_the_published_value(
    published: Published, params: dict[str, Any], tmp_path: Path
) -> None:
    listed = {row.setting: row for row in departures(published, params)}
    departed = [
        each
        for each in published.settings
        if isinstance(each, Value) and f"`{each.path}`" in listed
    ]
    assert departed
    for value in departed:
        changed = tmp_path / "params.yaml"
        changed.write_text((PROFILE / "params.yaml").read_text())
        apply_overrides(str(changed), changes(listed[f"`{value.path}`"]))
        values = load_profile(changed)
        assert value_at(values.values, value.path) == value.published
        rl, _ = values.section("rl", RlConfig), values.section("index", IndexSection)
        assert max(rl.steps.values()) * rl.groups_per_step <= rl.epochs * (
            published.train_questions - DEV_QUESTIONS
        )
        if rl.backend.service == "unsloth":
            require_honoured(rl)


def test_the_options_of_a_behaviour_name_fields_that_exist(
    published: Published, params: dict[str, Any]
) -> None:
    named = [
        change
        for row in departures(published, params)
        if row.setting[0] != "`"
        for change in changes(row)
    ]
    assert named
    for change in named:
        value_at(params, change.partition("=")[0])
