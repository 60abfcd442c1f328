"""Peak memory of what a phase starts: of the GPU where there is one, otherwise of this process's descendants."""

import contextlib
import shutil
import subprocess
import threading
from types import TracebackType

import psutil

GIB = 2**30
INTERVAL_S = 0.5


class MemoryMeter:
    """A context manager that looks every :data:`INTERVAL_S`; ``peak_gib`` is the most that it saw."""

    def __init__(self) -> None:
        self.peak_gib = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-meter", daemon=True)
        self._measure = gpu_memory_gib if shutil.which("nvidia-smi") else descendants_memory_gib

    def __enter__(self) -> "MemoryMeter":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self.peak_gib = max(self.peak_gib, round(self._measure(), 2))


def gpu_memory_gib() -> float:
    """Return the memory in use on the fullest GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    result = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return max((float(line) / 1024 for line in result.stdout.split("\n") if line.strip().isdigit()), default=0.0)


def descendants_memory_gib() -> float:
    """Return the resident memory of all processes below this one; pages that they share count for each."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / GIB
