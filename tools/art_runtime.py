"""Have ART install its vLLM (``art/vllm_runtime.py``) before a run needs it; `make art-vllm` runs this."""

import subprocess
import sys

from art import vllm_runtime

from deepsearch_rl.core.errors import UnavailableError


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
