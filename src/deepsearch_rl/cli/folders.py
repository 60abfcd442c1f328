"""What commands say of folders."""

from pathlib import Path


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder, in bytes."""
    size_bytes = 0
    for path in folder.rglob("*"):
        if path.is_file():
            size_bytes += path.stat().st_size

    return size_bytes
