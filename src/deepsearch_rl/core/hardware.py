"""Cores that this process may use, and the check that a GPU backend can run."""

import contextlib
import math
import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, TypeAlias

import psutil
from pydantic import Field

from deepsearch_rl.core.errors import UnavailableError

# Of numeric libraries; None: as many as cores
Threads: TypeAlias = Annotated[int, Field(ge=1)] | None

CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Return how many cores this process may keep busy: its affinity's, but no more than its container's quota.

    The affinity does not show the quota of ``docker run --cpus 2``; ``cgroup`` is where the kernel does.
    """
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    # cgroups v2 have "max 100000" or "200000 100000" in one file, v1 two files
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)

    with contextlib.suppress(OSError, ValueError):
        quota_us = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int((cgroup / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return quota_us / period_us if quota_us > 0 else None

    return None


def free_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Return how much memory this process may still take: the machine's free one, but no more than its container's."""
    free = psutil.virtual_memory().available
    # cgroups v2 have "max" or a number, and count the page cache as used
    with contextlib.suppress(OSError, ValueError):
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        statistics = (cgroup / "memory.stat").read_text(encoding="ascii").split()
        cached = int(statistics[statistics.index("inactive_file") + 1])
        free = min(free, limit - used + cached)
    return free


def require_gpu(purpose: str, packages: Sequence[str] = ()) -> None:
    """Raise UnavailableError, with everything that is missing, unless packages and a CUDA device are there.

    Args:
        purpose: subject of the error message, e.g. "rl with the unsloth backend".
        packages: import names, which are not imported because some fail without a GPU; of
            "one|other" either will do.
    """
    missing: list[str] = []
    for name in packages:
        if not any(map(find_spec, name.split("|"))):
            missing.append(f"the package {name!r}")

    if find_spec("torch") is None or not import_module("torch").cuda.is_available():
        missing.append("a CUDA GPU (torch.cuda.is_available() is false)")
    if missing:
        raise UnavailableError(
            f"{purpose} cannot run here: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. "
            "profiles/gpu/README.md says which machine and environments the gpu profile needs; `dvc repro dvc.yaml` "
            "runs the same graph at toy size on a CPU."
        )
