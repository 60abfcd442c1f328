"""A stage starts only with the versions of packages that its result is recorded with."""

import json
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from deepsearch_rl.core.errors import ConfigError, UnavailableError
from deepsearch_rl.core.installed import installed_versions, require_packages, require_recorded

HERE = str(Path(sys.prefix, "bin", "python"))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, before all others on the path."""
    folder = tmp_path / "site-packages"
    for name in ("torch-2.12.0+cpu", "ruamel.yaml-0.19.1", "a_trainer-1.10"):
        (folder / f"{name}.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.slow
def test_what_is_installed_is_what_pythons_own_reader_finds() -> None:
    found = {
        canonicalize_name(each.metadata["Name"]): each.version
        for each in reversed(list(distributions()))
    }
    assert installed_versions() == found


@pytest.mark.usefixtures("packages")
def test_the_recorded_versions_may_be_of_another_build_or_of_another_python_and_what_is_missing_decides_nothing() -> (
    None
):
    require_packages(
        {"torch": "2.12.0", "ruamel-yaml": "0.18.0 or 0.19.1", "nowhere-to-be-found": "1.0"}
    )


@pytest.mark.usefixtures("packages")
def test_other_versions_than_the_recorded_ones_are_named_with_what_installs_and_records_them() -> (
    None
):
    with pytest.raises(UnavailableError) as error:
        require_packages({"torch": "2.13.0", "ruamel-yaml": "0.19.1", "a-trainer": "1.1"})
    text = str(error.value)
    assert "torch 2.12.0+cpu (recorded: 2.13.0), a-trainer 1.10 (recorded: 1.1)" in text
    assert "`make environment` installs the versions of uv.lock" in text
    assert "`make params` records the new ones" in text
    assert "ruamel" not in text


@pytest.mark.usefixtures("packages")
def test_an_environment_of_a_gpu_profile_is_made_from_its_own_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "prefix", "/project/.venvs/sft")
    with pytest.raises(
        UnavailableError, match=r"`make gpu-environments` installs .* profiles/gpu/requirements/"
    ):
        require_packages({"torch": "2.13.0"})


@pytest.mark.usefixtures("packages")
def test_of_a_stage_with_two_interpreters_the_packages_of_the_one_that_runs_are_compared(
    tmp_path: Path,
) -> None:
    entry = {"sft": {"torch": "2.12.0"}, "serve": {"torch": "2.99.0"}}
    file = tmp_path / "packages.json"
    file.write_text(json.dumps({"sft": entry, "rl": {"rl": {"torch": "2.99.0"}}}))
    require_recorded(file, "sft", {"sft": HERE, "serve": ".venvs/serve/bin/python"})
    with pytest.raises(UnavailableError, match=r"torch 2\.12\.0\+cpu \(recorded: 2\.99\.0\)"):
        require_recorded(file, "sft", {"sft": ".venvs/sft/bin/python", "serve": HERE})
    with pytest.raises(UnavailableError):
        require_recorded(file, "rl@base", {"rl": HERE})


@pytest.mark.parametrize("text", [None, "{", '{"sft": {"sft": ["torch"]}}', '{"merge": {}}'])
def test_a_file_without_the_stage_says_what_writes_it(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "packages.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(
        ConfigError,
        match=r"packages\.json does not have the packages of the stage sft: `make params`",
    ):
        require_recorded(file, "sft", {"sft": HERE})
