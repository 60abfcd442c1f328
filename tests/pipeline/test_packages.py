"""The versions of what a stage imports decide whether it is up to date, and those of nothing else do."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest
from dvc.repo import Repo
from dvc.stage import PipelineStage

from deepsearch_rl.locked import locked_versions, uv_versions
from deepsearch_rl.profile import load_profile, profile_names
from flows.graph import read_graph
from scripts.imports import ROOT, programs_in
from scripts.packages import BENEATH, INSTEAD, NAMED, distribution_of, packages_of, third_party_modules

LOCK = (ROOT / "uv.lock").read_text(encoding="utf-8")
PROGRAMS = programs_in((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
ONLY_ON_A_GPU = {"vllm", "unsloth", "liger-kernel", "kernels", "flash-attn", "flash-attn-interface"}
"""Not in uv.lock; profiles/gpu/requirements has them, or its user installs them."""


@pytest.mark.parametrize("module", sorted({module for _, module in PROGRAMS}))
def test_every_package_that_a_stage_can_load_is_locked(module: str) -> None:
    named = {distribution_of(name) for name in third_party_modules(module)}
    assert named - uv_versions(LOCK).keys() <= ONLY_ON_A_GPU, "add the module to DISTRIBUTIONS of commands/doctor.py"


@pytest.mark.parametrize("profile", profile_names(ROOT))
def test_every_interpreter_of_a_profile_runs_a_stage_and_has_a_lock(profile: str) -> None:
    params = ROOT / "params.yaml" if profile == "tiny" else ROOT / f"profiles/{profile}/params.yaml"
    interpreters = load_profile(params).value("python")
    assert {family for family, _ in PROGRAMS} == interpreters.keys()
    for interpreter in interpreters.values():
        assert "pydantic" in locked_versions(ROOT, interpreter)


@cache
def asked_for() -> dict[str, set[str]]:
    """What the packages of uv.lock and of the GPU environments ask for, by package."""
    packages = tomllib.loads(LOCK)["package"]
    names = {package["name"]: {each["name"] for each in package.get("dependencies", [])} for package in packages}
    for path in ROOT.glob("profiles/gpu/requirements/*.txt"):
        for line in re.findall(r"^([\w.-]+)==\S+((?:\n +# .*)*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            package, via = line
            for other in re.findall(r"# +(?:via +)?([a-z][\w.-]*)$", via, re.MULTILINE):
                names.setdefault(other, set()).add(package)
    return names


@pytest.mark.parametrize("package", BENEATH)
def test_what_counts_beneath_a_package_is_what_it_asks_for(package: str) -> None:
    direct = asked_for()[package]
    reachable = direct.union(*(asked_for().get(name, ()) for name in direct))
    assert set(BENEATH[package]) <= reachable


@pytest.mark.parametrize("distribution", [*BENEATH, *INSTEAD.values(), *map(distribution_of, NAMED)])
def test_the_tables_name_packages_that_some_stage_can_load(distribution: str) -> None:
    everything = {**uv_versions(LOCK), **dict.fromkeys(ONLY_ON_A_GPU | {"faiss-gpu"}, ("1",))}
    assert distribution in set().union(*(packages_of(module, everything) for _, module in PROGRAMS))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project in git and DVC in which every stage of tiny is up to date; its outputs are stand-ins."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\0")
    for name in files:
        if (ROOT / name).is_file() and not name.startswith(("reports/", "tests/", "docs/")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "dvc.lock").unlink(missing_ok=True)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    with chdir(tmp_path), Repo() as repo:
        stages = [stage for stage in repo.stage.collect("dvc.yaml") if isinstance(stage, PipelineStage)]
        for path in {path for stage in stages for path in (*stage.outs, *stage.deps)}:
            if not path.exists:
                Path(path.fs_path).parent.mkdir(parents=True, exist_ok=True)
                Path(path.fs_path).write_text(path.def_path)
        with repo.lock:
            for stage in stages:
                stage.save()
                stage.dump()
    return tmp_path


def upgrade(project: Path, package: str) -> set[str]:
    """Lock another version of a package, as `uv lock` does, and return the stages that DVC would then run."""
    lock = project / "uv.lock"
    text, count = re.subn(
        rf'^(name = "{package}"\nversion = )".*"$', r'\1"99.1"', lock.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert count
    lock.write_text(text, encoding="utf-8")
    # What `make environment` does after it has installed a changed lock.
    subprocess.run([sys.executable, "-m", "scripts.packages"], cwd=project, check=True)
    return {name for name, stage in read_graph(project, "tiny").items() if stage.changed}


def test_an_upgrade_runs_exactly_the_stages_again_that_import_the_package(project: Path) -> None:
    assert upgrade(project, "boto3") == set()
    graph = read_graph(project, "tiny")
    others = {"download", "chunk", "report", "track"}
    assert upgrade(project, "transformers") == graph.keys() - others
    recorded = json.loads((project / "packages.json").read_text(encoding="utf-8"))
    assert recorded["rl"]["rl"]["transformers"] == "99.1"
    assert upgrade(project, "matplotlib") == graph.keys() - others | {"report"}
