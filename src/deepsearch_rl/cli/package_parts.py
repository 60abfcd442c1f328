"""The parts of this package, the packages that each of them needs, and which of those are installed.

The parts are the extras of pyproject.toml (`pip install deepsearch-rl[retrieval]`), and the base,
which is installed without any.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from deepsearch_rl.core.installed import EITHER
from deepsearch_rl.core.locked import uv_versions

OURS = "deepsearch-rl"
# What is installed without any extra
BASE = "base"
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


def with_locked_versions(parts: Parts, lock: Path) -> Parts:
    """Return the parts with exactly the versions of a ``uv.lock`` required."""
    locked = uv_versions(lock.read_text(encoding="utf-8"))

    def with_versions(package: Package) -> Package:
        versions = locked.get(package.name, ())
        fits = package.installed.partition("+")[0] in versions
        return replace(package, required=f"=={EITHER.join(versions)}", fits=fits)

    return {part: tuple(map(with_versions, packages)) for part, packages in parts.items()}


def installed_version(name: str) -> str:
    """Return the version of an installed distribution, "" where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def read_parts() -> dict[str, tuple[Package, ...]]:
    """Return every part with the packages that it needs; the base first, an extra without those of the base."""
    base = _requirements("")
    parts = {BASE: _packages(base)}
    for extra in metadata(OURS).get_all("Provides-Extra") or []:
        # The extra of all parts would name every package a second time
        if extra != ALL:
            parts[extra] = _packages([line for line in _requirements(extra) if line not in base])

    return parts


def packages_of_graph() -> set[str]:
    """Return the names of the packages that the graph needs: those of the base and of the extra `all`."""
    return {package.name for package in _packages(_requirements(ALL))}


def explain_missing_module(error: ModuleNotFoundError) -> str | None:
    """Return what to install where a module of an optional part is missing, None where no part brings it."""
    module = (error.name or "").partition(".")[0]
    distribution = DISTRIBUTIONS.get(module, module.replace("_", "-").lower())
    commands: list[str] = []
    for part, packages in read_parts().items():
        if any(package.name == distribution for package in packages):
            commands.append(f"`{install_command(part)}`")

    if not commands:
        return None
    return (
        f"this needs the package {distribution}, which is not installed; "
        f"run {' or '.join(commands)}."
    )


def install_command(part: str) -> str:
    """Return the command line that installs a part."""
    return f"pip install {OURS if part == BASE else repr(f'{OURS}[{part}]')}"


def _requirements(extra: str) -> list[Requirement]:
    """Return what this package asks for here: with an extra, or without any where that is empty."""
    requirements: list[Requirement] = []
    for line in map(Requirement, requires(OURS) or []):
        applies = line.marker is None or line.marker.evaluate({"extra": extra})
        if line.name != OURS and applies:
            requirements.append(line)

    return requirements


def _packages(requirements: Iterable[Requirement]) -> tuple[Package, ...]:
    """Return the required packages by name, each with its installed version."""
    versions_of: dict[str, SpecifierSet] = {}
    for line in requirements:
        versions_of[canonicalize_name(line.name)] = line.specifier

    packages: list[Package] = []
    for name, versions in sorted(versions_of.items()):
        installed = installed_version(name)
        fits = bool(installed) and versions.contains(installed, prereleases=True)
        packages.append(Package(name, installed, str(versions), fits))

    return tuple(packages)
