"""Builds the throw-away environments in which trainers themselves run the conformance suite, and starts their children.

    python -m tests.environment.check_environments

A trainer that fits the versions of `.venv` gets a folder of packages beside those, which has torch,
transformers and this project: the trainer at the version that its adapter was written for, and what
it needs and `.venv` does not have. The others get an environment of their own, with this project in
it. One whose example is in no package is fetched at a commit.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CHILD_LIMIT_S = 280.0
UV = ROOT / ".venvs" / "uv" / "bin" / "uv"
TRAINERS = {"trl": ["trl==1.16.0"], "skyrl": ["skyrl-gym==0.4.0"]}
"""The packages of each trainer's folder, at exact versions, without what they depend on."""
TORCH = "torch==2.13.0"
OVERRIDES = {"verifiers": ["mcp==2.3.0", "mcp-types==2.3.0"]}
"""What a trainer asks for in another version than this project; verifiers asks for mcp 2.0.0."""
ENVIRONMENTS = {
    "verl": [
        "verl==0.9.1",
        "transformers==5.9.0",
        "TransferQueue==0.1.11",
        "ray==2.60.0",
        "tensordict==0.10.0",
        "peft==0.21.2",
        "cachetools==8.0.2",
        "fastapi==0.150.0",
        TORCH,
    ],
    "verifiers": ["verifiers==0.4.0", "transformers==5.2.0", "fastapi==0.150.0", TORCH],
}
"""The packages of each trainer's own environment; cachetools is imported by veRL, which does not ask for it."""
CHECKOUTS = {
    "rlinf": ("https://github.com/RLinf/RLinf", "a3816b596478dcd8a5c69a6ec1468c9519f77b5b")
}
"""Trainers whose example is in no package: repository and commit. RLinf's loader runs on veRL's packages."""
BESIDE = {"rlinf": ["sortedcontainers==2.4.0"]}
"""What a checkout's parts import besides, put into its folder."""


def packages_of(trainer: str) -> Path:
    """Return the folder of a trainer's packages, or its environment."""
    return ROOT / ".venvs" / f"check-{trainer}"


def interpreter_of(trainer: str) -> Path:
    """Return the Python of a trainer that has an environment of its own."""
    return packages_of(trainer) / "bin" / "python"


def child_lines(
    python: str | Path,
    *command: object,
    paths: Sequence[Path] = (ROOT,),
    folder: Path = ROOT,
    begin: str = '{"name',
    **variables: str,
) -> list[dict[str, Any]]:
    """Run a trainer's Python to its end; return the lines of its output that start with ``begin``, read as JSON.

    Its modules come from ``paths`` first. It has no GPU, one thread, and no connection to the hub;
    ``variables`` are its further environment variables.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **variables,
    }
    done = subprocess.run(
        [str(python), *map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=CHILD_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(begin)]


def lines_by_script(lines: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a child's lines by the names of the scripts that they are about."""
    return {line["name"]: line for line in lines}


def build() -> None:
    """Make what is not there with these versions yet; a few seconds for each with uv's cache."""
    for trainer, pins in TRAINERS.items():
        if not _is_current(trainer, pins):
            folder = packages_of(trainer)
            _uv("pip", "install", "--no-deps", "--target", folder, *pins, python=sys.executable)
            _stamp(trainer, pins)

    for trainer, pins in ENVIRONMENTS.items():
        if not _is_current(trainer, pins):
            _uv("venv", "--clear", packages_of(trainer), python=sys.executable)
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
                # some trainers ask for a CUDA build, or for a torch of another year
                overrides.write("\n".join([_cpu_build(TORCH), *OVERRIDES.get(trainer, [])]))
                overrides.flush()
                _uv(
                    "pip",
                    "install",
                    "--override",
                    overrides.name,
                    *pins,
                    "--editable",
                    f"{ROOT}[retrieval]",
                    python=interpreter_of(trainer),
                )
            _stamp(trainer, pins)

    for trainer, (repository, commit) in CHECKOUTS.items():
        if not packages_of(trainer).is_dir():
            _check_out(repository, commit, packages_of(trainer), BESIDE[trainer])


def _check_out(repository: str, commit: str, folder: Path, packages: list[str]) -> None:
    """Fetch a commit, with packages beside it; without the network say so, and leave the tests of this trainer out."""
    folder.mkdir(parents=True)
    steps = [
        ["init", "--quiet"],
        ["fetch", "--quiet", "--depth", "1", repository, commit],
        ["-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"],
    ]
    for step in steps:
        if subprocess.run(["git", *step], cwd=folder, check=False).returncode:
            sys.stderr.write(f"{repository} cannot be fetched, so that its tests are left out.\n")
            shutil.rmtree(folder)
            return

    _uv("pip", "install", "--no-deps", "--target", folder, *packages, python=sys.executable)


def _is_current(trainer: str, pins: list[str]) -> bool:
    stamp = packages_of(trainer) / "versions.txt"
    return stamp.is_file() and stamp.read_text(encoding="utf-8").split() == pins


def _stamp(trainer: str, pins: list[str]) -> None:
    (packages_of(trainer) / "versions.txt").write_text("\n".join(pins), encoding="utf-8")


def _cpu_build(torch: str) -> str:
    """Return the CPU build of a torch where the machine's find-links offer it: PyPI's is gigabytes of CUDA."""
    links = Path(os.environ.get("PIP_FIND_LINKS", ""))
    version = torch.partition("==")[2]
    has_build = links.is_dir() and any(links.glob(f"torch-{version}+cpu-*"))
    return f"{torch}+cpu" if has_build else torch


def _uv(*arguments: object, python: object) -> None:
    program = str(UV) if UV.exists() else "uv"
    command = [program, *map(str, arguments), "--quiet", "--python", str(python)]
    links = (
        {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if "PIP_FIND_LINKS" in os.environ else {}
    )
    subprocess.run(command, check=True, env={**os.environ, **links})


if __name__ == "__main__":
    build()
