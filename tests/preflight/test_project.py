import json
from dataclasses import replace
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import CommandError
from deepsearch_rl.core.profile import find_profile, load_profile, profile_names
from deepsearch_rl.evaluate.ifeval import IfevalConfig, load_prompts
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.sft import SftConfig
from tools import ROOT
from tools.preflight.machine import packages
from tools.preflight.phases import long_row
from tools.preflight.project import Project, cut_copy


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A copy of the smoke profile whose stages are those of the test."""
    project = cut_copy(ROOT, "smoke", tmp_path / "copy")
    (project.folder / "stages").unlink()
    (project.folder / "stages").mkdir()
    return project


def write_stage(project: Project, code: str) -> None:
    (project.folder / "stages" / "sample.py").write_text(code)


# The speedrun has fine-tuning alone
TRAINED = [
    name
    for name in profile_names(ROOT)
    if {"filter", "rl"} <= find_profile(ROOT, name).values.keys()
]


@pytest.mark.parametrize("name", TRAINED)
def test_the_cut_copy_of_every_trained_profile_fits_the_stages_that_read_it(
    name: str, tmp_path: Path
) -> None:
    profile = cut_copy(ROOT, name, tmp_path / "copy").profile
    values = load_profile(tmp_path / "copy" / "params.yaml").values
    assert values == {**profile.values, "params": "params.yaml"}
    assert load_prompts(profile.section("ifeval", IfevalConfig)), "without a download"
    rl, sft = profile.section("rl", RlConfig), profile.section("sft", SftConfig)
    assert (rl.steps, rl.groups_per_step, rl.group_size) == ({"base": 3}, 2, 4)
    whole = load_profile(
        ROOT / ("params.yaml" if name == "tiny" else f"profiles/{name}/params.yaml")
    )
    for section, config in (("sft", sft), ("rl", rl)):
        kept = {
            "dtype",
            "device",
            "packing",
            "attention",
            "lora",
            "loss",
            "learning_rate",
            "backend",
        }
        theirs = whole.section(section, type(config))
        for field in kept & set(type(config).model_fields):
            assert getattr(config, field) == getattr(theirs, field), f"{section}.{field}"


def test_a_stage_runs_in_the_copy_with_the_copys_params(project: Project) -> None:
    write_stage(project, "import sys, os\nopen('ran', 'w').write(' '.join(sys.argv[1:]))")
    project.run(
        "core", "stages.sample", "base", params=project.write_params({"seed": 3}, "other.yaml")
    )
    assert (project.folder / "ran").read_text() == "other.yaml base"
    assert load_profile(project.folder / "other.yaml").value("seed") == 3
    assert project.profile.value("seed") == 0


@pytest.mark.slow
def test_the_first_stage_of_a_gpu_profile_runs_in_its_copy(tmp_path: Path) -> None:
    copy = cut_copy(ROOT, "gpu", tmp_path / "copy")
    python = dict.fromkeys(copy.profile.values["python"], ".venv/bin/python")
    project = replace(copy, profile=copy.profile.with_overrides({"python": python}))
    project.run("core", "stages.download")
    assert (project.data / "questions" / "multihoprag" / "train.jsonl").is_file()


def test_a_failed_stages_own_paragraph_is_the_error(project: Project) -> None:
    write_stage(project, "import sys\nprint('loading')\nsys.exit('error: the disk is full.')")
    with pytest.raises(
        CommandError,
        match=r"`stages\.sample base` failed: the disk is full\. \(its output: .*log\)",
    ):
        project.run("core", "stages.sample", "base")


def test_of_a_stage_that_dies_without_an_error_the_last_lines_are_shown(project: Project) -> None:
    write_stage(project, "for number in range(99): print('line', number)\nraise SystemExit(7)")
    with pytest.raises(CommandError, match=r"failed: line 84\n[\s\S]*line 98 \(its output: "):
        project.run("core", "stages.sample")


def test_a_stage_is_killed_as_soon_as_the_condition_holds(project: Project) -> None:
    write_stage(project, "import time\nopen('begun', 'w')\ntime.sleep(600)\nopen('ended', 'w')")
    project.kill_when((project.folder / "begun").exists, "core", "stages.sample")
    assert not (project.folder / "ended").exists()


def test_a_stage_that_ends_before_it_is_killed_is_an_error(project: Project) -> None:
    write_stage(project, "raise SystemExit('error: no rows.')")
    with pytest.raises(CommandError, match=r"did not get to where it would be killed: no rows\."):
        project.kill_when(lambda: False, "core", "stages.sample")


def test_the_packages_of_a_family_follow_the_profiles_settings() -> None:
    values = load_profile(ROOT / "profiles/gpu/params.yaml").values
    assert packages(values, "serve") == ["vllm"]
    assert packages(values, "sft") == []
    packed = {**values, "sft": {**values["sft"], "attention": "flash_attn"}}
    assert packages(packed, "sft") == ["flash_attn"]
    assert packages(load_profile(ROOT / "params.yaml").values, "serve") == []


def test_a_long_row_has_about_as_many_tokens_as_wanted() -> None:
    short = {"messages": [{"role": "tool_response", "content": "word " * 10}]}
    lines = [json.dumps(short)] * 3
    row = json.loads(long_row(lines, tokens=90, max_tokens=1000))
    assert 700 < len(json.dumps(row)) * 90 / sum(map(len, lines)) <= 1000
