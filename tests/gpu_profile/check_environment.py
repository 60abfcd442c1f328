"""Builds the throw-away environments in which vLLM, Unsloth and faiss-gpu themselves read the gpu profile's calls.

    python -m tests.gpu_profile.check_environment

faiss-gpu takes faiss-cpu's place, so it has an environment of its own; it needs CUDA's libraries,
but no GPU, to be imported, and refuses the copy to a GPU at the very end. Both others come as their
wheels and without CUDA: vLLM's argument parser needs its Python dependencies alone (and
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
FAISS_ENVIRONMENT = ROOT / ".venvs" / "check-faiss"
FAISS_PYTHON = FAISS_ENVIRONMENT / "bin" / "python"
REQUIREMENTS = ROOT / "profiles/gpu/requirements"
GPU_ONLY = re.compile(
    r"nvidia-|cuda-|flashinfer|torch(vision|audio|codec)|tilelang|triton|quack|humming|cutlass|ray|numba|llvmlite|opencv"
)


def pins(name: str) -> list[str]:
    """The ``package==version`` lines of a compiled requirements file."""
    lines = (REQUIREMENTS / name).read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if re.match(r"[a-zA-Z0-9]", line)]


def build() -> None:
    """Make ``.venvs/check`` (pins of the serve and rl environments) and ``.venvs/check-faiss``: 4 GB on disk."""
    wanted = [pin for pin in pins("serve.txt") if not GPU_ONLY.match(pin)]
    wanted += [pin for pin in pins("rl.txt") if pin.startswith("unsloth==")]
    faiss = [pin for pin in pins("index.txt") if not GPU_ONLY.match(pin) or "-cu12==" in pin]
    uv = next((path for path in (ROOT / ".venvs/uv/bin/uv",) if path.exists()), "uv")
    links = (
        {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if "PIP_FIND_LINKS" in os.environ else {}
    )
    run = {"check": True, "env": {**os.environ, **links}}
    for environment, pinned in ((ENVIRONMENT, wanted), (FAISS_ENVIRONMENT, faiss)):
        subprocess.run([uv, "venv", "-q", "--clear", "--python", "3.11", environment], **run)
        python = environment / "bin" / "python"
        subprocess.run(
            [uv, "pip", "install", "-q", "--no-deps", "--python", python, *pinned], **run
        )


if __name__ == "__main__":
    sys.exit(build())
