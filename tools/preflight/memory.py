"""Peak memory of a process and all that it starts, or of the GPU where there is one."""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator

import psutil

GIB = 2**30
INTERVAL_S = 0.5


@contextlib.contextmanager
def measured_memory(pid: int) -> Iterator[list[float]]:
    """Look at a process every :data:`INTERVAL_S` until the end of the block; yield the samples, GiB."""
    has_gpu = shutil.which("nvidia-smi") is not None
    done = threading.Event()
    samples_gib = [0.0]

    def watch() -> None:
        while not done.wait(INTERVAL_S):
            samples_gib.append(round(gpu_memory_gib() if has_gpu else memory_gib(pid), 2))

    thread = threading.Thread(target=watch, name="memory", daemon=True)
    thread.start()

    try:
        yield samples_gib
    finally:
        done.set()
        thread.join()


def gpu_memory_gib() -> float:
    """Return the memory in use on the fullest GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    result = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return max(
        (float(line) / 1024 for line in result.stdout.split("\n") if line.strip().isdigit()),
        default=0.0,
    )


def memory_gib(pid: int) -> float:
    """Return the resident memory of a process and all below it; pages that they share count for each."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss

    return total / GIB
