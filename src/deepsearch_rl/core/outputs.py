"""Whether a file or folder may be written without the loss of what is there."""

from collections.abc import Iterable
from pathlib import Path

from deepsearch_rl.core.errors import ConfigError


def require_another_file(out: Path, sources: Iterable[Path]) -> None:
    """Raise ConfigError where a file to write is one of those that are read; either may not exist."""
    for source in sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise ConfigError(f"{out} is the source itself; name another file or folder to write.")


def require_new_folder(folder: Path) -> None:
    """Raise ConfigError where a folder that is written as a whole would replace a file, or a folder with files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; remove it, or name another folder.")
