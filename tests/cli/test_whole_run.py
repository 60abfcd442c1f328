from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.cli.planning.whole_run import blocked_stage, require_target, run_command
from deepsearch_rl.cli.summary import read_table
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.profile import Profile, find_profile
from tests.conftest import ROOT

COMMANDS = {
    "tiny": "dvc repro dvc.yaml",
    "gpu": "dvc repro profiles/gpu/dvc.yaml",
    "own_gpu": "dvc repro profiles/own_gpu/dvc.yaml",
    "own": "make own",
    "multihoprag": "make multihoprag",
    "search_r1": "dvc repro profiles/search_r1/dvc.yaml:track",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_profile_has_a_command_that_does_not_stop_on_its_way(name: str) -> None:
    assert run_command(find_profile(ROOT, name)) == COMMANDS[name]


def test_a_copy_of_a_profile_that_trains_nothing_has_a_command_too() -> None:
    copy = find_profile(ROOT, "own").with_overrides({"profile": "mine"})
    assert run_command(copy) == "make api-stages PROFILE=mine"
    models = {**copy.values, "models": {"theirs": "models/theirs"}}
    assert run_command(Profile(copy.path, models)) == "dvc repro profiles/mine/dvc.yaml:track"


@pytest.mark.parametrize(
    ("name", "stage", "reason"),
    [
        ("own", "prepare_model", "trains no model.*`make own`"),
        (
            "search_r1",
            "synthesize",
            "has no teacher.*`dvc repro profiles/search_r1/dvc.yaml:track`",
        ),
    ],
)
def test_a_whole_run_that_would_stop_is_refused_with_the_command_that_does_not(
    name: str, stage: str, reason: str
) -> None:
    profile = find_profile(ROOT, name)
    assert blocked_stage(profile) == stage
    with pytest.raises(ConfigError, match=reason):
        require_target(profile, ())
    require_target(profile, ("track",))
    require_target(find_profile(ROOT, "tiny"), ())


def test_a_profile_that_trains_no_model_has_no_runs_to_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, ["rl", "runs", "own"])
    assert str(result.exception) == "work/own has no run of RL: the profile own trains no model."


def test_a_profile_without_a_curve_is_no_empty_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, ["live", "own", "--to", "sqlite:///unused.db"])
    assert result.output == "own: no training run has left a curve in work/own.\n"


def test_a_missing_table_is_made_by_the_command_of_its_profile(tmp_path: Path) -> None:
    folder = tmp_path / "profiles" / "own"
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_bytes((ROOT / "profiles/own/params.yaml").read_bytes())
    with pytest.raises(ArtifactError, match="`make own` makes it"):
        read_table(tmp_path, "own")
