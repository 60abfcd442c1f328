import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepsearch_rl.processes import ProcessGuard
from flows.locks import gpu_lock, held

HOLD = """
import sys, time
from pathlib import Path
from flows.locks import held
with held(Path(sys.argv[1]), "the first run", print, print):
    print("held", flush=True)
    time.sleep(600)
"""


def ignore(_: object = None) -> None:
    return


def test_who_waits_says_for_whom_and_goes_on_when_the_holder_is_killed(tmp_path: Path, root: Path) -> None:
    lock = tmp_path / "work" / "flow.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, lock], cwd=root, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        said: list[str] = []

        def kill_once_said() -> None:
            os.kill(holder.pid, signal.SIGKILL)

        started = time.monotonic()
        with held(lock, "the second run", said.append, kill_once_said):
            assert time.monotonic() - started < 30
            assert lock.read_text() == "the second run"
    assert said == [f"waiting for the first run, which holds {lock}"]


def test_a_run_that_is_cancelled_while_it_waits_does_not_hold_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "gpu.lock"

    def cancel() -> None:
        raise KeyboardInterrupt

    with held(lock, "the first run", ignore, ignore):
        with pytest.raises(KeyboardInterrupt), held(lock, "the second run", ignore, cancel):
            pytest.fail("held twice")
        assert lock.read_text() == "the first run"
    with held(lock, "the third run", ignore, cancel):
        assert lock.read_text() == "the third run"


def test_the_gpu_is_free_when_the_last_process_on_it_has_ended(tmp_path: Path) -> None:
    lock, started, order = (tmp_path / name for name in ("gpu.lock", "started", "order"))
    os.mkfifo(started)
    on_term = f"sleep 1; echo ended > {order}; exit"
    slow_end = f"trap '{on_term}' TERM; echo > {started}; while :; do sleep .1; done"
    stage = [sys.executable, "-c", "import subprocess, sys; subprocess.run(['sh', '-c', sys.argv[1]])", slow_end]
    guard = ProcessGuard()
    with held(lock, "the first run", ignore, ignore) as descriptor:
        process = guard.start(stage, kept=[descriptor])
        started.read_text()
    assert process.poll() is None

    def close_guard() -> None:
        if process.poll() is None:
            guard.__exit__()

    with held(lock, "the second run", ignore, close_guard):
        assert order.read_text() == "ended\n"


def test_clones_share_the_lock_of_the_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    both = gpu_lock()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert gpu_lock() != both
    assert gpu_lock().is_absolute()
