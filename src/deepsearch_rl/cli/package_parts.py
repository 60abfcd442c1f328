"""Which packages the parts of this package need, and which of them are missing or have another version.

The parts are the extras of pyproject.toml (`pip install deepsearch-rl[retrieval]`), and the base.
"""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def installed_version(name: str) -> str:
    """Return the version of an installed distribution, empty where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def requirements(extra: str = "") -> Iterator[Requirement]:
    """Yield what this package asks for here, with an extra or without any."""
    for line in map(Requirement, requires(OURS) or []):
        applies = line.marker is None or line.marker.evaluate({"extra": extra})
        if line.name != OURS and applies:
            yield line


def misfits(extra: str = "") -> list[str]:
    """Return the packages that are missing or have another version, each as ``torch 2.9 (needs ==2.13.0)``."""
    found: list[str] = []
    for line in requirements(extra):
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
    if any(canonicalize_name(line.name) == distribution for line in requirements()):
        return ""
    from importlib.metadata import metadata  # noqa: PLC0415 - for an error alone

    for extra in metadata(OURS).get_all("Provides-Extra") or []:
        if extra != ALL and any(
            canonicalize_name(line.name) == distribution for line in requirements(extra)
        ):
            return extra
    return ALL
