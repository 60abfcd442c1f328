"""The locked versions of packages: of ``uv.lock`` for ``.venv``, of a requirements file for each GPU environment.

locked_versions(root, ".venv/bin/python")["torch"]              # ("2.13.0",)
locked_versions(root, ".venvs/serve/bin/python")["vllm"]        # ("0.32.0",)
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from packaging.utils import canonicalize_name

UV_LOCK = "uv.lock"
REQUIREMENTS = Path("profiles", "gpu", "requirements")
_PIN = re.compile(r"^([\w.-]+)(?:\[[\w,. -]*\])?==([^\s;]+)", re.MULTILINE)

# Canonical name of a distribution -> its versions; several where the versions of Python need
# several
Versions = Mapping[str, tuple[str, ...]]


def lock_file(root: Path, interpreter: str) -> Path | None:
    """Return the file that decides what `make` installs for an interpreter of a profile; None for one of the user's."""
    environment = Path(interpreter).parent.parent.parts
    if environment == (".venv",):
        return root / UV_LOCK
    if environment[:1] == (".venvs",) and len(environment) == 2:
        return root / REQUIREMENTS / f"{environment[1]}.txt"
    return None


def locked_versions(root: Path, interpreter: str) -> Versions:
    """Return the locked versions for an interpreter of a profile; empty where the project locks none for it."""
    path = lock_file(root, interpreter)
    if path is None or not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    return uv_versions(text) if path.name == UV_LOCK else _pinned_versions(text)


# By its text: seconds to parse, and asked for by every profile
@cache
def uv_versions(text: str) -> Versions:
    """Return the versions that a ``uv.lock`` has."""
    versions: dict[str, tuple[str, ...]] = {}
    for package in tomllib.loads(text)["package"]:
        name = package["name"]
        versions[name] = (*versions.get(name, ()), package.get("version", ""))

    return versions


def _pinned_versions(text: str) -> Versions:
    """Return the versions of a requirements file."""
    return {canonicalize_name(match[1]): (match[2],) for match in _PIN.finditer(text)}
