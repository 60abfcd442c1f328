"""The vLLM that ART installs for itself (``art/vllm_runtime.py``), beside the environment of the stage.

    python -m deepsearch_rl.training.backends.art.runtime     (`make gpu-environments` runs it)

ART would install it at the first step of a run, with the ``uv`` that it finds on PATH. Here it is installed before, so
that a run neither stops at its first step nor waits for a download there.
"""

import subprocess
import sys

from art import vllm_runtime

from deepsearch_rl.errors import UnavailableError


def require_runtime() -> None:
    """Raise UnavailableError unless ART will find its vLLM as it is and install nothing."""
    manifest = vllm_runtime._load_bundled_manifest(vllm_runtime._bundled_runtime_dir())
    root, digest = vllm_runtime.get_vllm_runtime_cache_root().resolve(), vllm_runtime._manifest_hash(manifest)
    if not vllm_runtime._validate_managed_runtime(
        root / digest, cache_root=root, manifest=manifest, manifest_hash=digest
    ):
        raise UnavailableError(f"ART's vLLM is not installed below {root}; `make gpu-environments` installs it.")


def install_runtime() -> None:
    """Let ART install its vLLM unless it is there; raise UnavailableError with uv's last words if that fails."""
    try:
        vllm_runtime.ensure_vllm_runtime()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(
            f"ART's vLLM cannot be installed: {error} It needs uv on PATH, Python 3.12 and wheels.vllm.ai."
        ) from error


if __name__ == "__main__":
    try:
        install_runtime()
    except UnavailableError as error:
        sys.exit(f"error: {error}")
