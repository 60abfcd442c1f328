"""The parts of this package (`pip install deepsearch-rl[retrieval]`): what each needs, and what is installed.

The parts are the extras of pyproject.toml, as the metadata of the installed package has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = "deepsearch-rl"
BASE = "base"
"""What is installed without any extra."""
ALL = "all"
"""The extra with every part of the graph."""
DISTRIBUTIONS = {
    "Stemmer": "pystemmer",
    "agents": "openai-agents",
    "art": "openpipe-art",
    "faiss": "faiss-cpu",
    "jnius": "pyjnius",
    "jnius_config": "pyjnius",
    "mp_actors": "openpipe-art",
    "sklearn": "scikit-learn",
    "swift": "ms-swift",
    "yaml": "pyyaml",
}
"""Modules whose distribution has another name."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that a part needs.

    ``installed`` is its version, empty where it is missing; ``required`` the versions that fit, such as ``>=2.54,<3``,
    empty for any.
    """

    name: str
    installed: str
    required: str
    fits: bool

    def __str__(self) -> str:
        needs = f" (needs {self.required})" if self.required and not self.fits else ""
        return f"{self.name} {self.installed or 'missing'}{needs}"


def installed_version(name: str) -> str:
    """Return the version of an installed distribution, "" where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def read_parts() -> dict[str, tuple[Package, ...]]:
    """Return every part with the packages that it needs; the base first, an extra without those of the base."""
    extras = [name for name in metadata(OURS).get_all("Provides-Extra") or [] if name != ALL]
    by_extra = {part: _packages(lambda line, part=part: _needs(line, part) and not _needs(line, "")) for part in extras}
    return {BASE: _packages(lambda line: _needs(line, "")), **by_extra}


def packages_of_graph() -> set[str]:
    """Return the names of the packages that the graph needs: those of the base and of the extra `all`."""
    return {package.name for package in _packages(lambda line: _needs(line, ALL))}


def explain_missing_module(error: ModuleNotFoundError) -> str | None:
    """Return what to install where a module of an optional part is missing, None where no part brings it."""
    module = (error.name or "").partition(".")[0]
    distribution = DISTRIBUTIONS.get(module, module.replace("_", "-").lower())
    parts = [part for part, packages in read_parts().items() if distribution in {package.name for package in packages}]
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
    for name, versions in sorted({canonicalize_name(line.name): line.specifier for line in lines}.items()):
        installed = installed_version(name)
        fits = bool(installed) and versions.contains(installed, prereleases=True)
        packages.append(Package(name, installed, str(versions), fits))
    return tuple(packages)
