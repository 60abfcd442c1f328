"""The installed packages are those that a stage's result is recorded with: asked when a stage starts.

    require_recorded(Path("packages.json"), "evaluate", profile.values["python"])

``packages.json`` beside a profile's params.yaml has for every stage the locked versions of what it
imports, by the interpreter that imports it (`make params` writes it), and DVC records them with the
stage's result. They are the versions that made the result only where they are what is installed.

Names and versions are read from the names of the ``.dist-info`` folders, as the packaging standard
defines them: to open the metadata of the forty packages of a stage would take a fifth of a second.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from deepsearch_rl.core.errors import ConfigError, UnavailableError

# Canonical name of a distribution -> its locked version
PackageVersions = dict[str, str]
# Between the versions of a package of which the lock has several, one for each version of Python
EITHER = " or "
_SUFFIX = ".dist-info"
_SEPARATORS = re.compile(r"[-_.]+")
_PACKAGES_FILE = TypeAdapter(dict[str, dict[str, PackageVersions]])


def require_recorded(file: Path, stage: str, interpreters: Mapping[str, str]) -> None:
    """Check what a packages.json has for a stage, ``rl`` or ``rl@sft``.

    Of the families of interpreters in the stage's entry those count whose interpreter in
    ``interpreters``, the params' ``python``, is the Python that runs: a stage may have programs of
    several.

    Raises:
        ConfigError: the file cannot be read, or has no such stage.
        UnavailableError: another version is installed than the recorded one.
    """
    try:
        stages = _PACKAGES_FILE.validate_json(file.read_bytes())
        families = stages[stage.partition("@")[0]]
    except (OSError, ValidationError, KeyError) as error:
        raise ConfigError(
            f"{file} does not have the packages of the stage {stage}: `make params` writes it."
        ) from error

    for family, versions in families.items():
        if is_this_python(interpreters.get(family, "")):
            require_packages(versions)


def require_packages(versions: Mapping[str, str]) -> None:
    """Raise UnavailableError, with all packages named, where other versions than these are installed.

    The part of a version behind a ``+`` names a build (``2.13.0+cpu``) and is not compared. A
    package that is not installed is no difference: nothing comes from it, and what needs it says
    itself how to install it.
    """
    installed = installed_versions()
    differences: list[str] = []
    for name, version in versions.items():
        present = installed.get(name)
        if present is not None and present.partition("+")[0] not in version.split(EITHER):
            differences.append(f"{name} {present} (recorded: {version})")

    if differences:
        environment = Path(sys.prefix)
        make = "environment"
        lock = "uv.lock"
        # Environments of GPU machines have locks of their own
        if environment.parent.name == ".venvs":
            make = "gpu-environments"
            lock = "profiles/gpu/requirements/"
        raise UnavailableError(
            f"{environment} has other versions of packages than would be recorded with the stage's "
            f"result: {', '.join(differences)}. `make {make}` installs the versions of {lock}; "
            "after an upgrade there, `make params` records the new ones, and DVC runs the stages "
            "again that import them."
        )


def installed_versions() -> dict[str, str]:
    """Return the version of every installed distribution, by its canonical name (``pyyaml``, ``ruamel-yaml``)."""
    versions: dict[str, str] = {}

    # The first one on the path is imported, so it is read last.
    for folder in reversed(sys.path):
        try:
            # A third of the time
            entries = os.listdir(folder or os.curdir)  # noqa: PTH208
        except OSError:
            continue

        for entry in entries:
            if entry.endswith(_SUFFIX):
                name, _, version = entry.removesuffix(_SUFFIX).partition("-")
                versions[_SEPARATORS.sub("-", name).lower()] = version

    return versions


def is_this_python(interpreter: str) -> bool:
    """Return whether this Python is an interpreter as params name it, e.g. ``.venvs/sft/bin/python``.

    A copy of the project inside it has no environments of its own, so the folder above them may be
    any.
    """
    environment = Path(interpreter).parent.parent.parts
    return bool(environment) and Path(sys.prefix).parts[-len(environment) :] == environment
