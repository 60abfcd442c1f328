"""The vLLM that ART installs for itself (``art/vllm_runtime.py``), beside the environment of the stage.

ART would install it at the first step of a run. `make art-vllm` does so before
(``tools/art_runtime.py``), so that a run neither stops at its first step nor waits for a download
there.
"""

from art import vllm_runtime

from deepsearch_rl.core.errors import UnavailableError


def require_runtime() -> None:
    """Raise UnavailableError unless ART will find its vLLM as it is and install nothing."""
    manifest = vllm_runtime._load_bundled_manifest(vllm_runtime._bundled_runtime_dir())
    root = vllm_runtime.get_vllm_runtime_cache_root().resolve()
    digest = vllm_runtime._manifest_hash(manifest)

    if not vllm_runtime._validate_managed_runtime(
        root / digest, cache_root=root, manifest=manifest, manifest_hash=digest
    ):
        raise UnavailableError(
            f"ART's vLLM is not installed below {root}; `make art-vllm` installs it."
        )
