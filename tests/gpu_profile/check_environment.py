"""Builds the throw-away environment in which the gpu profile's calls are read by vLLM and Unsloth themselves.

    python -m tests.gpu_profile.check_environment

Both packages come as their wheels and without CUDA: vLLM's argument parser needs its Python dependencies alone (and
``VLLM_TARGET_DEVICE=cpu``); Unsloth does not import without a GPU, so its source is parsed instead.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venvs" / "check"
PYTHON = ENVIRONMENT / "bin" / "python"
REQUIREMENTS = ROOT / "profiles/gpu/requirements"
GPU_ONLY = re.compile(
    r"nvidia-|cuda-|flashinfer|torch(vision|audio|codec)|tilelang|triton|quack|humming|cutlass|ray|numba|llvmlite|opencv"
)


def pins(name: str) -> list[str]:
    """The ``package==version`` lines of a compiled requirements file."""
    lines = (REQUIREMENTS / name).read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if re.match(r"[a-zA-Z0-9]", line)]


def build() -> None:
    """Make ``.venvs/check`` from the pins of the serve and rl environments (3 GB on disk)."""
    wanted = [pin for pin in pins("serve.txt") if not GPU_ONLY.match(pin)]
    wanted += [pin for pin in pins("rl.txt") if pin.startswith("unsloth==")]
    uv = next((path for path in (ROOT / ".venvs/uv/bin/uv",) if path.exists()), "uv")
    links = {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if "PIP_FIND_LINKS" in os.environ else {}
    run = {"check": True, "env": {**os.environ, **links}}
    subprocess.run([uv, "venv", "-q", "--clear", "--python", "3.11", ENVIRONMENT], **run)
    subprocess.run([uv, "pip", "install", "-q", "--no-deps", "--python", PYTHON, *wanted], **run)


if __name__ == "__main__":
    sys.exit(build())
