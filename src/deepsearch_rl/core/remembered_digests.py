"""Digests of large files, remembered by a user from one command to the next."""

import contextlib
import os
import tempfile
import time
from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import read_json, sha256_file, sha256_json, write_json

# Reading a smaller file takes no longer than looking its digest up
REMEMBERED_FROM_BYTES = 16 * 2**20

# A second change within the resolution of a file's times would leave them as they are
SETTLED_NS = 2_000_000_000


def remembered_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read again only where the file has changed since this user last asked.

    A digest is kept in the folder of temporary files, with the file's number, size and times. Small
    files are always read, and so are those that changed a moment ago: a second change could then
    leave the same times.
    """
    before = path.stat()
    folder = _digests_folder() if before.st_size >= REMEMBERED_FROM_BYTES else None
    if folder is None:
        return sha256_file(path)

    stamp = [before.st_dev, before.st_ino, before.st_size, before.st_mtime_ns, before.st_ctime_ns]
    record = folder / f"{sha256_json(str(path.resolve()))}.json"

    with contextlib.suppress(OSError, ArtifactError):
        known = read_json(record)
        if isinstance(known, dict) and known.get("stamp") == stamp:
            return str(known.get("sha256"))

    digest = sha256_file(path)
    after = path.stat()
    is_settled = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > SETTLED_NS

    # The digest only saves time, so that a full disk is no error here.
    if is_settled and (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size):
        with contextlib.suppress(OSError):
            write_json(record, {"stamp": stamp, "sha256": digest})
    return digest


def _digests_folder() -> Path | None:
    """Return a folder for temporary files in which nobody but this user can write; None where there is none."""
    # Not every machine has a folder for temporary files
    with contextlib.suppress(OSError):
        folder = Path(tempfile.gettempdir(), f"deepsearch-digests-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o022:
            return folder

    return None
