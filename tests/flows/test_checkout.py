"""Which folder a run works in, and what may be changed in it."""

import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from deepsearch_rl.core.errors import ConfigError, UnknownNameError
from deepsearch_rl.core.profile import find_profile
from flows.checkout import (
    SECTIONS,
    check_experiment_is_new,
    check_experiment_name,
    open_checkout,
    resolve_revision,
    save_experiment,
)
from flows.reproduce import run_name
from tests.flows.conftest import MakeProject
from tests.repository import commit_all, git

PLAIN = {
    "profile",
    "wdir",
    "own",
    "packages",
    "params",
    "python",
    "seed",
    "models",
    "model_settings",
    "datasets",
}
PARAMS = {"profile": "tiny", "flow": {"gpu_stages": [], "outside_stages": []}, "number": 7}


@pytest.fixture
def project(make_project: MakeProject) -> Path:
    folder = make_project({"write": {"cmd": "true"}}, yaml.safe_dump(PARAMS))
    (folder / ".gitignore").write_text("/work/\n")
    commit_all(folder, "first")
    return folder


def nobody(sentence: str) -> None:
    raise AssertionError(sentence)


def test_every_section_of_a_profile_has_a_config_that_checks_it(root: Path) -> None:
    profile = find_profile(root, "gpu")
    assert profile.values.keys() - PLAIN == SECTIONS.keys()
    for section, config in SECTIONS.items():
        profile.section(section, pkgutil.resolve_name(config))


def test_a_plain_run_works_in_the_project_itself(project: Path) -> None:
    assert open_checkout(project, "tiny", "", {}, nobody) == project


@pytest.mark.slow
def test_other_parameters_are_set_in_a_clone_and_the_project_stays_as_it_is(project: Path) -> None:
    folder = open_checkout(project, "tiny", "", {"number": 8}, nobody)
    assert folder.is_relative_to(project / "work" / "checkouts")
    assert yaml.safe_load((folder / "params.yaml").read_text())["number"] == 8
    assert yaml.safe_load((project / "params.yaml").read_text())["number"] == 7
    assert open_checkout(project, "tiny", "", {"number": 8}, nobody) == folder, (
        "a killed run continues there"
    )
    assert open_checkout(project, "tiny", "", {"number": 9}, nobody) != folder


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"numbre": 8}, UnknownNameError, "number"),
        (
            {"flow.gpu_stages": "sft"},
            ConfigError,
            r"flow\.gpu_stages: Input should be a valid frozenset",
        ),
        ({"number": "eight"}, ConfigError, "number is a int, not 'eight'"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_before_anything_starts(
    project: Path, params: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_checkout(project, "tiny", "", params, nobody)


def test_a_branch_is_the_newest_that_the_remote_has(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    branch = git(project, "branch", "--show-current")
    other = tmp_path_factory.mktemp("other") / "clone"
    git(project, "clone", "--quiet", str(project), str(other))
    newest = commit_all(other, "second") if (other / "new.txt").write_text("new") else ""
    git(project, "remote", "add", "origin", str(other))
    assert resolve_revision(project, branch, nobody) == newest
    assert (open_checkout(project, "tiny", branch, {}, nobody) / "new.txt").is_file()


def test_without_a_revision_the_projects_own_commit_runs_not_the_remotes(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clone = tmp_path_factory.mktemp("clone") / "project"
    git(project, "clone", "--quiet", str(project), str(clone))
    (clone / "new.txt").write_text("new")
    commit_all(clone, "of this clone alone")
    assert (open_checkout(clone, "tiny", "", {"number": 8}, nobody) / "new.txt").is_file()


@pytest.mark.slow
def test_a_clone_has_the_projects_settings_of_dvc(project: Path) -> None:
    remote = "[core]\n    remote = storage\n['remote \"storage\"']\n    url = ../../shared\n"
    (project / ".dvc" / "config").write_text(remote)
    (project / ".dvc" / "config.local").write_text("[cache]\n    type = symlink\n")
    commit_all(project, "a remote")
    with Repo(str(open_checkout(project, "tiny", "HEAD", {}, nobody))) as repo:
        assert repo.config["remote"]["storage"]["url"] == str(project.parent / "shared")
        assert (repo.config["cache"]["type"], repo.cache.local_cache_dir) == (
            ["symlink"],
            str(project / ".dvc/cache"),
        )


def test_a_clone_has_the_projects_documents_as_they_are_now(project: Path) -> None:
    values = PARAMS | {"make_questions": {"documents": {"own": "data/own/documents"}}}
    (project / "params.yaml").write_text(yaml.safe_dump(values))
    (project / ".gitignore").write_text("/work/\n/data/\n")
    commit_all(project, "documents")
    documents = project / "data" / "own" / "documents"
    (documents / "old").mkdir(parents=True)
    (documents / "old" / "dear.txt").write_text("Dear Ada,")
    folder = open_checkout(project, "tiny", "", {"number": 8}, nobody)
    copy = folder / "data" / "own" / "documents" / "old"
    assert (copy / "dear.txt").read_text() == "Dear Ada,"

    (documents / "old" / "dear.txt").rename(documents / "old" / "sir.txt")
    assert open_checkout(project, "tiny", "", {"number": 8}, nobody) == folder
    assert [path.name for path in copy.iterdir()] == ["sir.txt"]


@pytest.mark.parametrize("name", ["groups of 16", "a/b", "-f", ""])
def test_a_name_that_no_experiment_can_have_is_refused_at_once(name: str) -> None:
    with pytest.raises(ConfigError, match="an experiment's name has letters, digits"):
        check_experiment_name(name)


@pytest.mark.slow
def test_an_experiment_of_a_name_that_exists_is_never_replaced_by_one_with_other_params_or_of_another_profile(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_COMMITTER_NAME", "a")
    monkeypatch.setenv("GIT_COMMITTER_EMAIL", "a@b.c")
    other = project / "profiles" / "other"
    other.mkdir(parents=True)
    stage = {"write": {"cmd": "cat params.yaml > out", "deps": ["params.yaml"], "outs": ["out"]}}
    for folder, profile in ((project, "tiny"), (other, "other")):
        (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stage}))
        (folder / "params.yaml").write_text(yaml.safe_dump({**PARAMS, "profile": profile}))
        (folder / ".gitignore").write_text("/work/\n/out\n")
    commit_all(project, "two profiles")

    def make(profile: str, number: int) -> Path:
        folder = open_checkout(project, profile, "HEAD", {"number": number}, nobody)
        graph = "dvc.yaml" if profile == "tiny" else "profiles/other/dvc.yaml"
        subprocess.run(
            [sys.executable, "-m", "dvc", "repro", graph],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        return folder

    eight = make("tiny", 8)
    assert check_experiment_is_new(project, eight, "tiny", "mine")
    save_experiment(project, eight, "tiny", ["write"], "mine")
    assert not check_experiment_is_new(project, eight, "tiny", "mine"), (
        "the same again is the same experiment"
    )
    save_experiment(project, eight, "tiny", ["write"], "mine")
    experiments = git(project, "for-each-ref", "refs/exps")

    nine, other_profile = make("tiny", 9), make("other", 8)
    message = r"an experiment mine with number=8\. Choose another name, or remove that one: `dvc exp remove mine`\."
    with pytest.raises(ConfigError, match=message):
        check_experiment_is_new(project, nine, "tiny", "mine")
    with pytest.raises(ConfigError, match=f"What this run made is in {nine}"):
        save_experiment(project, nine, "tiny", ["write"], "mine")
    with pytest.raises(ConfigError, match="an experiment mine of another profile"):
        save_experiment(project, other_profile, "other", ["write"], "mine")
    assert git(project, "for-each-ref", "refs/exps") == experiments


def test_without_the_remote_the_local_revision_runs_and_a_warning_says_so(project: Path) -> None:
    branch, warnings = git(project, "branch", "--show-current"), []
    git(project, "remote", "add", "origin", str(project / "gone"))
    assert resolve_revision(project, branch, warnings.append) == git(project, "rev-parse", "HEAD")
    assert "`git fetch origin` failed" in warnings[0]


def test_a_revision_that_nobody_has_is_named(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"no git revision 'nightly': name a branch"):
        open_checkout(project, "tiny", "nightly", {}, nobody)


def test_the_name_of_a_run_shows_what_differs_from_a_plain_run() -> None:
    assert run_name("gpu") == "gpu"
    name = run_name("gpu", ("rl",), force=True, revision="3f2a1c", params={"rl.group_size": 16})
    assert name == "gpu · rl · rl.group_size=16 · 3f2a1c · forced"


@pytest.mark.slow
def test_in_a_moved_project_a_clone_goes_on_with_the_moved_projects_objects_cache_and_experiments(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    open_checkout(project, "tiny", "", {"number": 8}, nobody)
    moved = tmp_path_factory.mktemp("elsewhere") / "moved"
    shutil.copytree(project, moved)
    shutil.rmtree(project / ".git")
    folder = open_checkout(moved, "tiny", "", {"number": 8}, nobody)
    assert folder.is_relative_to(moved)
    assert git(folder, "rev-parse", "HEAD") == git(moved, "rev-parse", "HEAD")
    assert git(folder, "remote", "get-url", "origin") == str(moved)
    with Repo(str(folder)) as clone:
        assert Path(clone.cache.local_cache_dir).is_relative_to(moved)


def test_without_git_there_is_no_clone(project: Path) -> None:
    shutil.rmtree(project / ".git")
    with pytest.raises(ConfigError, match=r"is no git repository .* `git init"):
        open_checkout(project, "tiny", "", {"number": 8}, nobody)
