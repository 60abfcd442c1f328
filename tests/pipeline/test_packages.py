"""The versions of what a stage imports decide whether it is up to date, and those of nothing else do."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import chdir
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from dvc.repo import Repo
from dvc.stage import PipelineStage
from dvc.stage.serialize import to_lockfile
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deepsearch_rl.core.locked import locked_versions, uv_versions
from deepsearch_rl.core.profile import load_profile, profile_names
from flows.driver import Stage, read_graph
from tools.imports import ROOT, programs_in
from tools.packages import (
    BENEATH,
    INSTEAD,
    NAMED,
    distribution_of,
    packages_of,
    third_party_modules,
    write_changed,
)

LOCK = (ROOT / "uv.lock").read_text(encoding="utf-8")
PROGRAMS = programs_in((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
ONLY_ON_A_GPU = {"vllm", "unsloth", "liger-kernel", "flash-attn", "flash-attn-interface"}
"""Not in uv.lock; profiles/gpu/requirements has them, or its user installs them."""


@pytest.mark.parametrize("module", sorted({module for _, module in PROGRAMS}))
def test_every_package_that_a_stage_can_load_is_locked(module: str) -> None:
    named = {distribution_of(name) for name in third_party_modules(module)}
    assert named - uv_versions(LOCK).keys() <= ONLY_ON_A_GPU, (
        "add the module to DISTRIBUTIONS of cli/package_parts.py"
    )


@pytest.mark.parametrize("profile", profile_names(ROOT))
def test_every_interpreter_of_a_profile_runs_a_stage_and_has_a_lock(profile: str) -> None:
    params = ROOT / "params.yaml" if profile == "tiny" else ROOT / f"profiles/{profile}/params.yaml"
    interpreters = load_profile(params).value("python")
    assert {family for family, _ in PROGRAMS} == interpreters.keys()
    for interpreter in interpreters.values():
        assert "pydantic" in locked_versions(ROOT, interpreter)


def asked_for(package: str) -> set[str]:
    """What a package asks for, parts of it included; of one that is not installed here, as the GPU environments say."""
    try:
        return {canonicalize_name(Requirement(line).name) for line in requires(package) or ()}
    except PackageNotFoundError:
        texts = (
            path.read_text(encoding="utf-8")
            for path in ROOT.glob("profiles/gpu/requirements/*.txt")
        )
        pins = (
            pin
            for text in texts
            for pin in re.findall(r"^([\w.-]+)==.*((?:\n +# .*)*)", text, re.MULTILINE)
        )
        return {name for name, via in pins if re.search(rf" {package}$", via, re.MULTILINE)}


@pytest.mark.parametrize("package", BENEATH)
def test_what_counts_beneath_a_package_is_what_it_asks_for(package: str) -> None:
    direct = asked_for(package)
    assert set(BENEATH[package]) <= direct.union(*map(asked_for, direct))


@pytest.mark.slow
@pytest.mark.parametrize(
    "distribution", sorted({*BENEATH, *INSTEAD.values(), *map(distribution_of, NAMED)})
)
def test_the_tables_name_packages_that_some_stage_can_load(distribution: str) -> None:
    everything = {**uv_versions(LOCK), **dict.fromkeys(ONLY_ON_A_GPU | {"faiss-gpu"}, ("1",))}
    assert distribution in set().union(*(packages_of(module, everything) for _, module in PROGRAMS))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project in git and DVC in which every stage of tiny is up to date; its outputs are stand-ins."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    for name in files:
        if (ROOT / name).is_file() and not name.startswith(("reports/", "tests/", "docs/")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "dvc.lock").unlink(missing_ok=True)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    with chdir(tmp_path), Repo() as repo:
        stages = [
            stage for stage in repo.stage.collect("dvc.yaml") if isinstance(stage, PipelineStage)
        ]
        for out in (out for stage in stages for out in stage.outs):
            Path(out.fs_path).parent.mkdir(parents=True, exist_ok=True)
            Path(out.fs_path).write_text(out.def_path)
        with repo.lock:
            for stage in stages:
                # The run cache would take most of the time, and nothing here is restored from it
                stage.save(run_cache=False)
                stage.commit()
        entries = {name: entry for stage in stages for name, entry in to_lockfile(stage).items()}
    (tmp_path / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": entries}))
    return tmp_path


def upgrade(project: Path, *packages: str) -> dict[str, Stage]:
    """Lock other versions of packages, as `uv lock` does, and return the graph as DVC then sees it."""
    lock = project / "uv.lock"
    text = lock.read_text(encoding="utf-8")
    for package in packages:
        version = rf'^(name = "{package}"\nversion = )".*"$'
        text, count = re.subn(version, r'\1"99.1"', text, flags=re.MULTILINE)
        assert count

    lock.write_text(text, encoding="utf-8")
    # What `make environment` does after it has installed a changed lock.
    subprocess.run([sys.executable, "-m", "tools.packages"], cwd=project, check=True)
    return read_graph(project, "tiny")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_upgrade_runs_exactly_the_stages_again_that_import_the_package(project: Path) -> None:
    packages = project / "packages.json"
    before = packages.read_text(encoding="utf-8")
    # No stage imports boto3
    graph = upgrade(project, "boto3", "transformers")

    changed = {stage.family for stage in graph.values() if stage.is_changed}
    assert changed == {stage.family for stage in graph.values()} - {
        "download",
        "chunk",
        "index",
        "report",
        "track",
    }

    # What DVC compares has another version of transformers, and is otherwise as it was
    [version] = uv_versions(LOCK)["transformers"]
    name = '"transformers": '
    after = packages.read_text(encoding="utf-8")
    assert after == before.replace(f'{name}"{version}"', f'{name}"99.1"')


def test_versions_of_a_gpu_profile_are_those_of_each_interpreters_own_file() -> None:
    recorded = json.loads((ROOT / "profiles/gpu/packages.json").read_text(encoding="utf-8"))
    for stage, families in recorded.items():
        for family, versions in families.items():
            pins = (
                (ROOT / f"profiles/gpu/requirements/{family}.txt")
                .read_text(encoding="utf-8")
                .splitlines()
            )
            assert versions, stage
            assert {f"{name}=={version}" for name, version in versions.items()} <= set(pins)
    assert "faiss-gpu" in recorded["index"]["index"]
    assert {"vllm", "torch"} <= recorded["evaluate"]["serve"].keys()


def test_a_generated_file_that_cannot_be_written_is_the_one_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "packages.json"
    path.write_text("before")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full_disk)
        with pytest.raises(OSError, match="full"):
            write_changed({path: "after"}, tmp_path)

    assert path.read_text() == "before"
    write_changed({path: "after"}, tmp_path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["after"]


def full_disk(*_: object, **__: object) -> None:
    """Stands for a write that the disk has no room for."""
    raise OSError("the disk is full")
