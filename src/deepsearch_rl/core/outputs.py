"""Whether a file or folder may be written without the loss of what is there."""

from pathlib import Path

from deepsearch_rl.core.errors import ConfigError


def require_new_folder(folder: Path) -> None:
    """Raise ConfigError where a folder that is written as a whole would replace a file, or a folder with files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; remove it, or name another folder.")
