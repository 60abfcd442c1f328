"""What a GPU backend needs: asked for first, so that no stage works for an hour before it fails."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from deepsearch_rl.core.errors import UnavailableError


def require_gpu(purpose: str, packages: Sequence[str] = ()) -> None:
    """Check that the packages are installed and that torch sees a CUDA device.

    ``purpose`` is the subject of the error message, e.g. ``"rl with the unsloth backend"``.
    ``packages`` are import names, looked up only: some fail to import without a GPU; of
    ``"one|other"`` either will do. UnavailableError names everything that is missing.
    """
    missing: list[str] = []
    for name in packages:
        if not any(map(find_spec, name.split("|"))):
            missing.append(f"the package {name!r}")

    # torch is imported only where it is installed: without it the error should name it.
    if find_spec("torch") is None or not import_module("torch").cuda.is_available():
        missing.append("a CUDA GPU (torch.cuda.is_available() is false)")
    if missing:
        raise UnavailableError(
            f"{purpose} cannot run here: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. "
            "profiles/gpu/README.md says which machine and environments the gpu profile needs; `dvc repro dvc.yaml` "
            "runs the same graph at toy size on a CPU."
        )
