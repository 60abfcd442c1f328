"""Whether what a command shall write can be written, said before it computes for an hour.

The checks are callbacks of options and arguments, so that they come before the command's own code:

    out: Annotated[Path, Option(help="File to write.", callback=writable_file)]
"""

import os
import re
from pathlib import Path

from deepsearch_rl.core.errors import ConfigError

# What atomic writers of core/files.py call a file or folder until it is complete
_PARTIAL = re.compile(r"\.(?P<name>.+?)(\.[0-9a-f]{8}-\d+-\d+)?\.(partial|earlier|lock)")


def writable_file(path: Path | None) -> Path | None:
    """Return the path of a file to write; raise ConfigError where it is a folder or cannot be written there."""
    if path is None:
        return None
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it.")
    _require_writable(path, path.absolute().parent)
    return path


def writable_folder(path: Path | None) -> Path | None:
    """Return the path of a folder to write; raise ConfigError where it is a file or cannot be written there."""
    if path is None:
        return None
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; name a folder.")
    _require_writable(path, path.absolute())
    return path


def _require_writable(path: Path, folder: Path) -> None:
    """Raise ConfigError where ``folder``, or the part of it that is there, takes no new file."""
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigError(
            f"{path} cannot be written: {folder} is a file. Name another place, or move that file away."
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{path} cannot be written: you may not write in {folder}. Name another place, or change its permissions."
        )


def os_problem(error: OSError) -> str:
    """Return an error of the system with the path that the user named, where it is of a half-written file."""
    path = Path(str(error.filename or ""))
    place = path
    # A folder's lock is named after its half-written neighbour: ..index.partial.lock
    while partial := _PARTIAL.fullmatch(place.name):
        place = place.with_name(partial["name"])

    if place == path:
        return str(error)
    return f"{place} cannot be written: {error.strerror}. Name another place, or change its permissions."
