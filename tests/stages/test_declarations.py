"""What stage files declare is what dvc.yaml lists for them."""

import importlib
from pathlib import Path

import pytest
from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo

from deepsearch_rl.core.profile import dvc_file, find_profile, profile_names
from deepsearch_rl.core.stage import SOURCES, Stage
from tests.conftest import ROOT


@pytest.mark.parametrize("name", profile_names(ROOT))
def test_a_stage_declares_the_params_the_packages_and_the_inputs_that_dvc_yaml_lists(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    profile = find_profile(ROOT, name)
    with Repo(ROOT) as repo:
        stages = list(repo.stage.collect(dvc_file(name)))

    for listed in stages:
        program, _, item = listed.name.partition("@")
        declared: Stage = importlib.import_module(f"stages.{program}").STAGE

        sections: set[str] = set()
        paths: set[str] = set()
        for dep in listed.deps:
            if isinstance(dep, ParamsDependency):
                sections.update(dep.params)
            else:
                paths.add(Path(dep.fs_path).relative_to(ROOT).as_posix())

        packages = {f"{SOURCES.as_posix()}/{package}" for package in declared.packages}
        inputs = set(declared.input_paths(profile, item))
        assert sections == {
            section for section in declared.sections if section.partition(".")[0] in profile.values
        }, listed.name
        expected = {f"stages/{program}.py", profile.value("packages"), *packages, *inputs}
        # A prompt that another stage makes is a dep of the stages that read it
        prompts = {path for path in paths if path.startswith(f"data/{name}/prompts/")}
        assert paths - prompts <= expected, listed.name
        # Only what stages make that the profile does not have, and the toy package
        spared = ("data/", "models/", "reports/", "src/deepsearch_rl/toy")
        assert all(path.startswith(spared) for path in expected - paths), listed.name
        assert name != "tiny" or paths == expected
