"""Builds the throw-away environments in which trainers themselves run the conformance suite.

    python -m tests.environment.check_environments

Each is a folder of packages beside those of `.venv`, which has torch, transformers and this
project: the trainer at the version that its adapter was written for, and what it needs and `.venv`
does not have.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".venvs" / "uv" / "bin" / "uv"
TRAINERS = {"trl": ["trl==1.16.0"]}
"""The packages of each trainer's folder, at exact versions, without what they depend on."""


def packages_of(trainer: str) -> Path:
    """Return the folder of a trainer's packages."""
    return ROOT / ".venvs" / f"check-{trainer}"


def build() -> None:
    """Make the folders that are not there with these versions yet; a few seconds with uv's cache."""
    uv = str(UV) if UV.exists() else "uv"
    for trainer, pins in TRAINERS.items():
        folder = packages_of(trainer)
        stamp = folder / "versions.txt"
        if stamp.is_file() and stamp.read_text(encoding="utf-8").split() == pins:
            continue
        command = [
            uv,
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--python",
            sys.executable,
            "--target",
            folder,
            *pins,
        ]
        links = (
            {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]}
            if "PIP_FIND_LINKS" in os.environ
            else {}
        )
        subprocess.run(command, check=True, env={**os.environ, **links})
        stamp.write_text("\n".join(pins), encoding="utf-8")


if __name__ == "__main__":
    build()
