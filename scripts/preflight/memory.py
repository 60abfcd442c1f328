"""Peak memory of a process and all that it starts, or of the GPU where there is one."""

import contextlib
import shutil
import subprocess
import threading

import psutil

GIB = 2**30
INTERVAL_S = 0.5


class MemoryMeter:
    """A context manager that looks at a process every :data:`INTERVAL_S`; ``peak_gib`` is the most that it saw."""

    def __init__(self, pid: int) -> None:
        self.peak_gib = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=[pid], name="memory-meter", daemon=True)

    def __enter__(self) -> "MemoryMeter":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self, pid: int) -> None:
        has_gpu = shutil.which("nvidia-smi") is not None
        while not self._done.wait(INTERVAL_S):
            self.peak_gib = max(self.peak_gib, round(gpu_memory_gib() if has_gpu else memory_gib(pid), 2))


def gpu_memory_gib() -> float:
    """Return the memory in use on the fullest GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    result = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return max((float(line) / 1024 for line in result.stdout.split("\n") if line.strip().isdigit()), default=0.0)


def memory_gib(pid: int) -> float:
    """Return the resident memory of a process and all below it; pages that they share count for each."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss
    return total / GIB
