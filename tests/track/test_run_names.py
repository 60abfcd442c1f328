"""What runs in MLflow are called."""

from pathlib import Path

from deepsearch_rl.track.run_names import committed_params, describe_changes, run_name
from tests.repository import commit_all, git

COMMITTED = {
    "seed": 0,
    "rl": {"learning_rate": 0.005, "starts": ["sft", "base"], "api_key": "sk-1"},
}


def test_a_name_has_what_differs_the_experiment_and_the_start_of_the_commit() -> None:
    commit = {"git.commit": "f2f8c1b4d5e6-dirty"}
    assert run_name("tiny", commit) == "tiny · f2f8c1b"
    tags = {**commit, "changes": "rl.group_size=16", "dvc.experiment": "more"}
    assert run_name("tiny/sft", tags) == "tiny/sft · rl.group_size=16 · more · f2f8c1b"
    assert run_name("tiny", {"git.commit": "unknown"}) == "tiny", "outside git"


def test_changes_are_the_settings_that_differ_by_dotted_name_without_secrets() -> None:
    changed = {"seed": 0, "rl": {"learning_rate": 0.01, "starts": ["sft"], "api_key": "sk-2"}}
    assert describe_changes(changed, COMMITTED) == "rl.learning_rate=0.01, rl.starts=[sft]"
    assert describe_changes(COMMITTED, COMMITTED) == ""
    assert describe_changes(changed, {}) == "", "nothing is committed"


def test_a_name_is_bounded_however_much_differs() -> None:
    few = describe_changes({"seed": 1, "rl": {"prompt": "word " * 50}}, COMMITTED)
    assert few == "rl.prompt=word word word word wor…, seed=1"
    many = describe_changes({f"setting_{number}": number for number in range(40)}, COMMITTED)
    assert many == "setting_0=0, setting_1=1, setting_10=10, setting_11=11, setting_12=12, 35 more"
    longest = "x" * 78
    assert describe_changes({longest: 1}, COMMITTED) == f"{longest}=1"
    assert describe_changes({f"{longest}x": 1}, COMMITTED) == "settings changed: 1"
    tags = {"changes": "y" * 80, "dvc.experiment": "z" * 300, "git.commit": "0" * 40}
    assert len(run_name("profile/" + "m" * 300, tags)) <= 250, "what MLflow's database takes"


def test_committed_params_are_those_of_the_profiles_own_file_in_git(tmp_path: Path) -> None:
    path = tmp_path / "profiles" / "smoke" / "params.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("seed: 1\n")
    assert committed_params(path) == {}, "outside git there are none"
    git(tmp_path, "init", "-q")
    commit_all(tmp_path, "first")
    path.write_text("seed: 2\n")
    assert committed_params(path) == {"seed": 1}
