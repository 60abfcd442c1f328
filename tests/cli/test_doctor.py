"""What a machine and an environment are missing, each with the way to get it."""

import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from deepsearch_rl.cli import doctor
from deepsearch_rl.cli.doctor import (
    Machine,
    Requirements,
    explain_missing_module,
    inspect,
    missing_on_machine,
    render,
)
from deepsearch_rl.cli.doctor_training import missing_to_compile
from deepsearch_rl.cli.main import app
from deepsearch_rl.core.profile import find_profile
from tests.conftest import ROOT

SMALL = Machine(cores=2, memory_gib=8, free_disk_gib=10, gpus_gib=(), java="")
LARGE = Machine(64, 500, 2000, (80.0, 80.0), "Java 21.0.8")
NEEDS = Requirements(
    memory_gib=64, disk_gib=200, gpu_memory_gib=79, java=True, keys=("SOME_KEY",), max_hours=None
)


def missing(name: str, machine: Machine = SMALL) -> dict[str, str]:
    profile = find_profile(ROOT, name)
    found = doctor.missing_for_profile(ROOT, profile, machine)
    return {requirement.what: requirement.fix for requirement in found}


@pytest.mark.slow
def test_the_tiny_profile_can_run_here(root: Path) -> None:
    report = inspect(root)
    assert report.is_ready, report.missing["tiny"]
    assert "tiny: ready, `make repro`" in render(report)


def test_a_machine_that_compiles_nothing_with_pythons_headers_is_told_before_triton_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(compiler: Path) -> list[str]:
        monkeypatch.setenv("CC", str(compiler))
        return [each.what for each in missing_to_compile([Path(sys.executable)])]

    works, fails = tmp_path / "works", tmp_path / "fails"
    # It is given the folder of the headers, and the line that includes them
    works.write_text(
        '#!/bin/sh\ngrep -q Python.h && case "$*" in *-I*include/python3*) exit 0;; esac; exit 1'
    )
    fails.write_text("#!/bin/sh\necho 'fatal error: Python.h: No such file' >&2; exit 1")
    for path in (works, fails):
        path.chmod(0o755)
    assert found(works) == []
    [what] = found(fails)
    assert what.startswith("Python.h for ")
    assert "fatal error: Python.h: No such file" in what
    [what] = found(tmp_path / "none")
    assert what.startswith("a C compiler that answers")

    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    [missing_one] = missing_to_compile([Path(sys.executable)] * 2)
    assert missing_one.fix == "apt install gcc (or name one by CC)"


def test_a_server_that_answers_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in doctor.SERVERS:
        monkeypatch.delenv(name, raising=False)
    with socketserver.TCPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/api"
        monkeypatch.setenv("PREFECT_API_URL", address)
        assert list(doctor.server_lines()) == [f"PREFECT_API_URL {address}: answers"]
        server.shutdown()


def test_every_missing_requirement_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    found = {requirement.what: requirement.fix for requirement in missing_on_machine(NEEDS, SMALL)}
    assert list(found) == [
        "memory: 8 of 64 GiB",
        "disk: 10 of 200 GiB free",
        "a GPU with 79 GiB (this machine has: none)",
        "Java 21",
        "environment variable SOME_KEY",
    ]
    assert found["environment variable SOME_KEY"] == "add SOME_KEY=... to .env"

    monkeypatch.setenv("SOME_KEY", "k")
    assert list(missing_on_machine(NEEDS, LARGE)) == []
    old_java = Machine(64, 500, 2000, (80.0,), "openjdk version 17")
    assert [found.what for found in missing_on_machine(NEEDS, old_java)] == ["Java 21"]


def test_a_profile_of_five_environments_and_eight_gpus_names_them() -> None:
    found = missing("search_r1", LARGE)
    [interpreters] = [what for what in found if what.startswith("interpreter ")]
    assert ".venvs/core/bin/python, .venvs/index/bin/python" in interpreters
    assert found[interpreters] == "make gpu-environments"
    assert "8 GPUs (this machine has: 2)" in found
    assert "make verl-environment" in found.values()


def test_documents_and_models_that_no_stage_makes_are_named() -> None:
    assert "data/own/documents, the documents of make_questions.documents.own" in missing("own")
    other = find_profile(ROOT, "tiny").with_overrides({"models.sft": "elsewhere/sft"})
    found = [need.what for need in doctor.missing_for_profile(ROOT, other, LARGE)]
    assert found == ["elsewhere/sft (models.sft)"]


def test_a_run_that_takes_too_long_is_named() -> None:
    profile = find_profile(ROOT, "gpu").with_overrides({"requires.max_hours": 1})
    found = [need.what for need in doctor.missing_for_profile(ROOT, profile, LARGE)]
    assert any(" hours are planned, and requires.max_hours is 1" in what for what in found)


def test_a_run_that_takes_too_much_memory_is_named() -> None:
    profile = find_profile(ROOT, "tiny").with_overrides({"requires.memory_gib": 2})
    found = [need.what for need in doctor.missing_for_profile(ROOT, profile, LARGE)]
    assert any("GiB of memory are planned for " in what for what in found)


def test_keys_are_never_shown_and_servers_that_are_away_are_named_without_their_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hidden@127.0.0.1:9")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, "outside a project, complete packages are enough"
    assert "OPENAI_API_KEY set" in result.stdout
    assert "MLFLOW_TRACKING_URI http://127.0.0.1:9: no answer" in result.stdout
    assert "hidden" not in result.stdout


def test_a_package_of_another_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["numpy<1", "no-such-package", "deepsearch-rl[retrieval]; extra == 'all'"]
    monkeypatch.setattr(doctor, "requires", lambda _: asked)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "packages: no-such-package missing, numpy" in result.stdout
    assert "(needs <1)" in result.stdout


def test_a_program_that_hangs_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(doctor, "PROGRAM_TIMEOUT_S", 0.2)
    assert doctor.read_machine(tmp_path).gpus == "none"


def test_the_base_and_retrieval_ask_for_no_torch() -> None:
    for line in map(Requirement, requires("deepsearch-rl") or []):
        for extra in ("", "retrieval"):
            if line.marker is None or line.marker.evaluate({"extra": extra}):
                assert line.name != "torch", extra


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("faiss", "faiss-cpu", "[retrieval]"),
        ("Stemmer", "pystemmer", "[retrieval]"),
        ("swift.llm", "ms-swift", "[train]"),
        ("docx", "python-docx", "[documents]"),
        ("httpx", "httpx", ""),
    ],
)
def test_a_missing_module_is_explained_by_the_part_that_brings_it(
    module: str, package: str, extra: str
) -> None:
    text = explain_missing_module(ModuleNotFoundError(name=module))
    command = f"'deepsearch-rl{extra}'" if extra else "deepsearch-rl"
    assert text == (
        f"this needs the package {package}, which is not installed; run `pip install {command}`."
    )


def test_a_module_that_no_part_brings_is_not_explained() -> None:
    assert explain_missing_module(ModuleNotFoundError(name="no_such_module")) is None
