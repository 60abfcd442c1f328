"""Checkpoint folders of a policy: sealed with digests of their files, so that a damaged one is found before it is used.

A sealed folder has ``checkpoint.json``: ``{"start": ..., "files": {name: SHA-256}}``, where
``start`` is the digest of the weights that training started from.
"""

import json
from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import file_digests, read_json, write_json

SEAL = "checkpoint.json"
OPTIMIZER_FILE = "optimizer.pt"
# Files of a checkpoint that a merge does not need
RESUME_ONLY = (OPTIMIZER_FILE, SEAL, "README.md")


def seal(folder: Path, start: str) -> None:
    """Write ``checkpoint.json``; ``start`` is the digest of the start model's weights (``RlTask.weights``)."""
    (folder / SEAL).unlink(missing_ok=True)
    write_json(folder / SEAL, {"start": start, "files": file_digests(folder)})


def is_whole(folder: Path) -> bool:
    """Return whether a folder is sealed and holds exactly the files that it was sealed with."""
    try:
        digests = json.loads((folder / SEAL).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return False

    present = file_digests(folder)
    present.pop(SEAL, None)
    return present == digests


def require_start(folder: Path, start: str) -> None:
    """Check that a whole checkpoint was trained from the weights with the digest ``start``, or raise ArtifactError."""
    if read_json(folder / SEAL)["start"] != start:
        raise ArtifactError(
            f"{folder} was trained from other weights than those that rl starts from. Start from "
            f"the model that it belongs to, or delete {folder.parent} to train again."
        )
