"""Every params.yaml is what `make params` writes, and values that were edited in one are not lost."""

import re
import shutil
import subprocess
from difflib import unified_diff
from pathlib import Path

import pytest
import yaml
from dvc.utils.hydra import apply_overrides
from dvc.utils.serialize import parse_yaml
from ruamel.yaml import YAML

from deepsearch_rl.core import presets
from deepsearch_rl.core.errors import ConfigError, UnknownNameError
from deepsearch_rl.core.presets import extended_values, load_preset, preset_file
from deepsearch_rl.core.profile import load_profile
from tools import ROOT, params
from tools.params import generate, profile_files, write_params

PROFILES = profile_files()


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def generated_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profiles of this project, with params.yaml files as generated from them."""
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "profiles", root / "profiles", ignore=shutil.ignore_patterns("dvc.*"))
    shutil.copy(preset_file("tiny"), root / "tiny.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(params, "ROOT", root)
        for module in (params, presets):
            patch.setattr(module, "preset_file", lambda _: root / "tiny.yaml")
        write_params(force=True)
    return root


@pytest.fixture
def project(generated_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the profiles of this one."""
    shutil.copytree(generated_project, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(params, "ROOT", tmp_path)
    for module in (params, presets):
        monkeypatch.setattr(module, "preset_file", lambda _: tmp_path / "tiny.yaml")
    return tmp_path


@pytest.fixture
def small_project(project: Path) -> Path:
    """A project with the profiles tiny and smoke alone, since each file takes a moment to generate."""
    for folder in (project / "profiles").iterdir():
        if folder.is_dir() and folder.name != "smoke":
            shutil.rmtree(folder)
    return project


@pytest.mark.slow
@pytest.mark.parametrize("path", PROFILES, ids=name_of)
def test_params_are_generated(path: Path) -> None:
    # The working copy may hold the values of an experiment (`dvc exp run -S`); git then has the
    # generated ones.
    committed = subprocess.run(
        ["git", "show", f"HEAD:{name_of(path)}"], cwd=ROOT, capture_output=True, check=False
    )
    assert generate(PROFILES[path]) in (path.read_text(), committed.stdout.decode()), (
        "run `make params`"
    )


@pytest.mark.slow
@pytest.mark.parametrize("source", PROFILES.values(), ids=name_of)
def test_comments_and_layout_change_no_value(source: Path) -> None:
    assert yaml.safe_load(generate(source)) == extended_values(source)


@pytest.mark.slow
def test_an_experiment_changes_one_line_of_a_params_file(project: Path) -> None:
    for path in (project / "params.yaml", *project.glob("profiles/*/params.yaml")):
        before = path.read_text().splitlines()
        apply_overrides(path, ["rl.group_size=999"])  # what `dvc exp run -S` calls
        after = path.read_text().splitlines()
        changes = [
            line
            for line in unified_diff(before, after, n=0, lineterm="")
            if line[:3] not in ("---", "+++")
        ][1:]
        assert len(changes) == 2, "no comment may stand behind a list, nor a section end with one"
        assert changes[1] == "+  group_size: 999"
        assert YAML(typ="safe").load(path)["rl"]["group_size"] == 999, (
            "DVC reads it again with this parser"
        )


@pytest.mark.slow
def test_dvc_reads_values_with_a_colon_from_any_layout_also_after_an_experiment(
    project: Path,
) -> None:
    source = project / "profile.yaml"
    source.write_text(
        "# A profile.\nextends: tiny\nprofile: mine\n"
        "rl:\n  rewards: !replace {f1: 2.0, own/rewards.py:cites: 0.5}\n"
        'optimize_prompt: {rewards: !replace {"own/rewards.py:cites": 1.0}}\n'
        "filter: {predicates: [answered, own/filters.py:few]}\n"
        "index: {encoder: !replace {name: own, code: own/encoders.py:Words}}\n"
        "make_questions: {writer: {endpoint: {base_url: http://127.0.0.1:80/v1, model: m}}}\n"
    )
    path = source.with_name("params.yaml")
    path.write_text(generate(source))
    apply_overrides(path, ["rl.group_size=999"])
    values = parse_yaml(path.read_text(), path)
    assert values["rl"]["rewards"] == {"f1": 2.0, "own/rewards.py:cites": 0.5}
    assert values["optimize_prompt"]["rewards"] == {"own/rewards.py:cites": 1.0}
    assert values["filter"]["predicates"] == ["answered", "own/filters.py:few"]
    assert values["index"]["encoder"] == {"name": "own", "code": "own/encoders.py:Words"}
    endpoint = values["make_questions"]["writer"]["endpoint"]
    assert endpoint["base_url"] == "http://127.0.0.1:80/v1"


def test_a_section_that_stands_in_a_profile_twice_is_an_error_with_its_line(project: Path) -> None:
    source = project / "profile.yaml"
    source.write_text("extends: tiny\nprofile: mine\nrl:\n  epochs: 1.0\n\nrl:\n  epochs: 2.0\n")
    with pytest.raises(ConfigError, match=r"profile\.yaml, line 6: section rl .* twice"):
        generate(source)


def test_no_comment_is_lost_between_a_profile_and_its_params(project: Path) -> None:
    comment = re.compile(r"^(?:[^#]* )?# (.*)$", re.MULTILINE)
    preset = comment.findall((project / "tiny.yaml").read_text())
    assert not set(preset) - set(comment.findall((project / "params.yaml").read_text()))
    for source in project.glob("profiles/*/profile.yaml"):
        written = comment.findall(source.with_name("params.yaml").read_text())
        assert not set(comment.findall(source.read_text())) - set(written)


@pytest.mark.slow
def test_a_field_keeps_the_presets_comment_unless_the_profile_has_one() -> None:
    gpu = generate(ROOT / "profiles/gpu/profile.yaml")
    assert "  max_tokens: 3072          # per model call\n" in gpu
    assert "  startup_timeout_s: 1800   # 21 million passages\n" in gpu
    assert "\n# The base model: a hub snapshot.\nprepare_model:\n  source: hub\n" in gpu
    assert "!replace" not in gpu


@pytest.mark.slow
def test_a_changed_preset_reaches_every_params_file(project: Path) -> None:
    preset = project / "tiny.yaml"
    preset.write_text(preset.read_text().replace("max_batch: 256", "max_batch: 9"))
    write_params(force=False)
    files = [project / "params.yaml", *project.glob("profiles/*/params.yaml")]
    assert {load_profile(path).value("retrieval")["max_batch"] for path in files} == {9}


@pytest.mark.slow
def test_a_value_that_was_edited_in_params_is_named_and_not_overwritten(
    small_project: Path,
) -> None:
    path = small_project / "profiles/smoke/params.yaml"
    path.write_text(path.read_text().replace("missing: 0.12", "missing: 0.2"))
    with pytest.raises(
        ConfigError,
        match=r"profiles/smoke/params\.yaml was edited.* download\.world\.missing\. Put",
    ):
        write_params(force=False)
    assert load_profile(path).value("download")["world"]["missing"] == 0.2
    write_params(force=True)
    assert load_profile(path).value("download")["world"]["missing"] == 0.12


@pytest.mark.slow
def test_an_edited_value_may_move_into_the_profile(small_project: Path) -> None:
    path = small_project / "profiles/smoke/params.yaml"
    source = small_project / "profiles/smoke/profile.yaml"
    path.write_text(path.read_text().replace("missing: 0.12", "missing: 0.2"))
    source.write_text(source.read_text().replace("  world:\n", "  world:\n    missing: 0.2\n"))
    write_params(force=False)
    assert path.read_text() == generate(source)


def test_the_preset_tiny_has_the_values_of_the_tiny_profile() -> None:
    preset = load_preset("tiny")
    assert preset.name == "tiny"
    assert preset.values == yaml.safe_load(generate(preset_file("tiny")))


def test_a_preset_that_does_not_exist_gets_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown preset 'tinny'\. Did you mean 'tiny'"):
        load_preset("tinny")


def test_a_profile_extends_another_profile_and_what_that_one_extends(tmp_path: Path) -> None:
    texts = {
        "first": "extends: tiny\nprofile: first\nrl: {steps: {sft: 3}, group_size: 5}\n",
        "second": "extends: first\nprofile: second\nrl: {group_size: 6}\nmodels: !replace {a: b}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "profile.yaml").write_text(text)

    values = extended_values(tmp_path / "second/profile.yaml")
    assert values["profile"] == "second"
    assert values["models"] == {"a": "b"}
    assert (values["rl"]["steps"]["sft"], values["rl"]["group_size"]) == (3, 6)
    assert values["rl"]["learning_rate"] == load_preset("tiny").value("rl.learning_rate")


def test_profiles_that_extend_each_other_are_named(tmp_path: Path) -> None:
    for name, other in (("first", "second"), ("second", "first")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "profile.yaml").write_text(f"extends: {other}\n")
    with pytest.raises(ConfigError, match="extends itself: first -> second -> first"):
        extended_values(tmp_path / "first/profile.yaml")


def test_mappings_are_merged_and_replace_takes_their_place(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        "extends: tiny\nrl: {steps: {sft: 3}}\nmodels: !replace {a: b}\nsynthesize: {endpoint: {x: {y: 1}}}\n"
    )
    values = extended_values(path)
    assert values["rl"]["steps"] == {"sft": 3, "base": 8}
    assert values["models"] == {"a": "b"}
    assert values["synthesize"]["endpoint"] == {"x": {"y": 1}}
