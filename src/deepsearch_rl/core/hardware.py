"""What the machine has: the cores that this process may use, and what a GPU backend needs.

A GPU is asked for first, so that no stage works for an hour before it fails.
"""

import contextlib
import math
import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from deepsearch_rl.core.errors import UnavailableError

CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Return how many cores this process may keep busy, at least 1.

    They are those of its affinity, as ``taskset`` sets it, and no more than the quota of its
    container allows (``docker run --cpus 2``), which the affinity does not show. ``cgroup`` is where
    the kernel says so.
    """
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Return the cores that a container's quota allows, perhaps a fraction; None where there is none."""
    # Version 2 of cgroups has "max 100000" or "200000 100000" in one file, version 1 two files.
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)

    with contextlib.suppress(OSError, ValueError):
        quota_us = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int((cgroup / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return quota_us / period_us if quota_us > 0 else None

    return None


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
