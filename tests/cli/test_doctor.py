import dataclasses
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from deepsearch_rl.cli import doctor
from deepsearch_rl.cli.doctor import (
    DoctorReport,
    Machine,
    Requirements,
    missing_in_environments,
    missing_on_machine,
    render,
)
from deepsearch_rl.cli.main import app
from deepsearch_rl.cli.package_parts import Package, with_locked_versions
from deepsearch_rl.cli.profile_inputs import missing_inputs
from deepsearch_rl.cli.verl_inputs import missing_gpus
from deepsearch_rl.core.profile import Profile, find_profile
from tests.conftest import ROOT

LAPTOP = Machine(cores=2, memory_gib=8, free_disk_gib=50, gpus_gib=(), java="")
SERVER = Machine(
    cores=64, memory_gib=512, free_disk_gib=2000, gpus_gib=(80.0, 80.0), java="openjdk 21"
)
GPU_PROFILE = Requirements(
    memory_gib=64,
    disk_gib=200,
    gpu_memory_gib=40,
    java=True,
    keys=("DEEPSEARCH_TEST_KEY",),
    max_hours=None,
)
OLD_TORCH = Package("torch", "2.9.0", "==2.13.0", fits=False)


def run_doctor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.chdir(folder)
    return CliRunner().invoke(app, ["doctor"])


@pytest.mark.slow
def test_the_tiny_profile_can_run_here(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    result = run_doctor(root, monkeypatch)
    assert result.exit_code == 0, result.output
    assert "ready: dvc repro dvc.yaml" in result.output
    assert "OPENAI_API_KEY set" in result.output
    assert "hidden" not in result.output


def test_every_missing_requirement_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DEEPSEARCH_TEST_KEY", raising=False)
    missing = tuple(missing_on_machine(GPU_PROFILE, LAPTOP))
    torch = Package("torch", "", "==2.13.0", fits=False)
    parts = {"base": (), "train": (torch,)}
    commands = {"gpu": "dvc repro profiles/gpu/dvc.yaml"}
    text = render(DoctorReport(LAPTOP, parts, {"gpu": missing}, commands))
    for line in (
        "train        torch missing (needs ==2.13.0)",
        "- memory: 8 of 64 GiB",
        "- disk: 50 of 200 GiB free",
        "- a GPU with 40 GiB (this machine has: none)",
        "- Java 21",
        "make environment EXTRAS='--extra pyserini'",
        "export DEEPSEARCH_TEST_KEY=...",
    ):
        assert line in text


def test_what_the_backends_of_a_profile_need_is_looked_for_in_its_environments(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_VLLM_RUNTIME_CACHE_DIR", str(tmp_path / "art"))
    changes = {
        "index.vectors": {"kind": "ivf_flat", "device": "cuda"},
        "rl.backend.service": "unsloth",
    }
    gpu = find_profile(root, "gpu").with_overrides(changes)
    assert list(missing_in_environments(root, find_profile(root, "tiny"))) == []
    missing = list(missing_in_environments(tmp_path, gpu))
    assert [each.what.partition(" ")[0] for each in missing] == ["faiss-gpu", "ART's"]
    files = (".venvs/index/lib/python3.11/site-packages/faiss/_gpu_build.py", "art/0a/install.json")
    for path in (tmp_path / file for file in files):
        path.parent.mkdir(parents=True)
        path.touch()
    assert list(missing_in_environments(tmp_path, gpu)) == []


@pytest.mark.slow
def test_what_a_profile_loads_in_its_environments_is_loaded_and_not_looked_up(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, data = tmp_path / "modules", tmp_path / "nltk_data"
    modules.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(modules))
    monkeypatch.setenv("NLTK_DATA", str(data))
    for family in ("sft", "serve"):
        interpreter = tmp_path / f".venvs/{family}/bin/python"
        interpreter.parent.mkdir(parents=True)
        interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        interpreter.chmod(0o755)
    gpu = find_profile(root, "gpu").with_overrides({"sft.attention": "flash_attn"})

    (modules / "flash_attn.py").write_text(
        "raise ImportError('undefined symbol: _ZN3c105ErrorC2E')"
    )
    attention, sentences = missing_in_environments(tmp_path, gpu)
    assert attention.what.startswith(
        "flash_attn for sft.attention: flash_attn, in python.sft (ImportError: undefined"
    )
    assert "sft.attention to sdpa" in attention.fix
    assert sentences.what.startswith("NLTK's sentence model")
    assert sentences.fix == ".venvs/serve/bin/python -m tools.sentence_model"

    (modules / "flash_attn.py").write_text("")
    (data / "tokenizers" / "punkt_tab").mkdir(parents=True)
    assert list(missing_in_environments(tmp_path, gpu)) == []


def test_a_machine_that_has_everything_misses_nothing_and_an_old_java_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEEPSEARCH_TEST_KEY", "sk-hidden")
    assert list(missing_on_machine(GPU_PROFILE, SERVER)) == []
    too_old = dataclasses.replace(SERVER, java='openjdk version "17.0.15" 2025-04-15')
    assert [requirement.what for requirement in missing_on_machine(GPU_PROFILE, too_old)] == [
        "Java 21"
    ]


@pytest.mark.slow
def test_status_1_where_a_package_of_the_tiny_profile_is_not_the_locked_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor, "with_locked_versions", lambda parts, _: {**parts, "train": (OLD_TORCH,)}
    )
    result = run_doctor(root, monkeypatch)
    assert result.exit_code == 1
    assert "- torch 2.9.0 (needs ==2.13.0)\n      make environment" in result.output


@pytest.mark.slow
def test_a_backend_that_no_profile_needs_may_be_missing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Package("ray", "", ">=2.52", fits=False)
    monkeypatch.setattr(doctor, "with_locked_versions", lambda parts, _: {**parts, "ray": (ray,)})
    result = run_doctor(root, monkeypatch)
    assert result.exit_code == 0
    assert (
        "ray          ray missing (needs >=2.52)\n               complete it with: make environment"
        in result.output
    )


def test_what_is_wrong_with_the_projects_folder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").write_text("<<<<<<< HEAD\nprofile: tiny\n=======\n>>>>>>> other\n")
    result = run_doctor(tmp_path, monkeypatch)
    assert result.exit_code == 1
    assert result.output.startswith("error: params.yaml, line 1: git left both sides of a conflict")


def test_outside_a_project_only_machine_and_parts_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"base": (Package("rich", "15.0", "", fits=True),), "train": (OLD_TORCH,)}
    monkeypatch.setattr(doctor, "read_parts", lambda: parts)
    result = run_doctor(tmp_path, monkeypatch)
    assert result.exit_code == 0
    assert "complete it with: pip install 'deepsearch-rl[train]'" in result.output
    assert "Profiles" not in result.output


def test_outside_a_project_status_1_where_the_base_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "read_parts", lambda: {"base": (OLD_TORCH,)})
    assert run_doctor(tmp_path, monkeypatch).exit_code == 1


def test_each_version_that_the_lock_has_for_some_python_fits(tmp_path: Path) -> None:
    entries = [("numpy", "2.4.6"), ("numpy", "2.5.5"), ("torch", "2.13.0")]
    (tmp_path / "uv.lock").write_text(
        "".join(f'[[package]]\nname = "{n}"\nversion = "{v}"\n' for n, v in entries)
    )
    installed = {
        "base": (
            Package("numpy", "2.4.6", "", fits=True),
            Package("torch", "2.13.0+cpu", "", fits=True),
        )
    }
    [numpy, torch] = with_locked_versions(installed, tmp_path / "uv.lock")["base"]
    assert (numpy.required, numpy.fits, torch.fits) == ("==2.4.6 or 2.5.5", True, True)


def test_a_profile_that_is_ready_has_the_command_that_runs_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_MODEL", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "https://api.example.com/v1")
    lines = run_doctor(root, monkeypatch).output.splitlines()
    assert "  multihoprag  ready: make multihoprag" in lines


def test_what_differs_on_a_ray_cluster_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nprint('10.0.0.2 has torch 2.9.')\nraise SystemExit(1)\n"
    )
    python.chmod(0o755)
    places = {"rl.backend.verl.address": "10.0.0.1:6379", "rl.backend.verl.python": "python"}
    profile = find_profile(ROOT, "search_r1").with_overrides(places)
    missing = [requirement.what for requirement in missing_in_environments(tmp_path, profile)]
    assert "Ray cluster 10.0.0.1:6379: 10.0.0.2 has torch 2.9." in missing

    python.unlink()
    missing = [requirement.what for requirement in missing_in_environments(tmp_path, profile)]
    assert "veRL's interpreter python (rl.backend.verl.python)" in missing

    alone = find_profile(ROOT, "search_r1")
    assert not any("Ray" in found.what for found in missing_in_environments(tmp_path, alone))


def test_the_environment_and_the_gpus_of_verl_are_asked_for_without_a_cluster_too(
    tmp_path: Path,
) -> None:
    profile = find_profile(ROOT, "search_r1")
    missing = {item.what: item.fix for item in missing_in_environments(tmp_path, profile)}
    interpreter = "veRL's interpreter .venvs/verl/bin/python (rl.backend.verl.python)"
    assert missing[interpreter] == "make verl-environment"

    assert [item.what for item in missing_gpus(profile, 1)] == ["8 GPUs (this machine has: 1)"]
    assert not list(missing_gpus(profile, 8))
    assert not list(missing_gpus(find_profile(ROOT, "gpu"), 1))


def missing_in_a_copy(profile: Profile, root: Path) -> list[str]:
    return [requirement.what for requirement in missing_inputs(profile, root)]


def test_a_folder_that_no_stage_makes_and_that_is_missing_is_named_once(tmp_path: Path) -> None:
    copied = find_profile(ROOT, "multihoprag").with_overrides({"profile": "mine"})
    assert missing_in_a_copy(copied, ROOT) == []
    forgotten = copied.with_overrides(
        {
            "models": {"api": "profiles/mine/models/api", "sft": "models/mine/sft"},
            "optimize_prompt.models": {"api": "profiles/mine/models/api"},
            "synthesize.teacher": "profiles/mine/models/teacher",
        }
    )
    assert missing_in_a_copy(forgotten, ROOT) == [
        "profiles/mine/models/api (of models.api, optimize_prompt.models.api), which no stage makes",
        "profiles/mine/models/teacher (of synthesize.teacher), which no stage makes",
    ]

    own = find_profile(ROOT, "own_gpu").with_overrides({"profile": "mine"})
    [documents] = [found for found in missing_inputs(own, tmp_path) if "documents" in found.what]
    assert documents.fix == "tools/take_documents FOLDER mine"


def test_a_format_that_nobody_reads_is_named_before_anything_runs() -> None:
    profile = find_profile(ROOT, "multihoprag")
    source = {"path": "multihoprag"}
    field = "download.folder.corpora.multihoprag"
    renamed = profile.with_overrides({field: {**source, "format": "multihoprg"}})
    [problem] = missing_in_a_copy(renamed, ROOT)
    assert problem.startswith(f"unknown format of {field} 'multihoprg'. Did you mean 'multihoprag'")
    own = profile.with_overrides({field: {**source, "format": "own/reader.py:read"}})
    assert missing_in_a_copy(own, ROOT) == []


def test_a_program_that_hangs_is_named_and_the_report_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hung = tmp_path / "nvidia-smi"
    hung.write_text("#!/bin/sh\nexec sleep 60\n")
    hung.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(doctor, "PROGRAM_TIMEOUT_S", 0.2)
    assert doctor._output("nvidia-smi") == ""
    assert "nvidia-smi tells nothing here" in capsys.readouterr().err
