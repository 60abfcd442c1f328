import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from deepsearch_rl.core.processes import ProcessGuard
from flows import locks
from flows.locks import (
    LOCKS_VARIABLE,
    Holder,
    current_holder,
    gpu_locks,
    held,
    run_held,
    run_lock,
    visible_devices,
)

HOLD = """
import sys, time
from pathlib import Path
from flows.locks import held
with held(Path(sys.argv[1]), "the first run", "uses the GPU", print):
    print("held", flush=True)
    time.sleep(600)
"""
HELD_ABOVE = """
import sys
from pathlib import Path
from flows.locks import run_held
with run_held(Path(sys.argv[1]), "tiny", "the inner run", print) as locks:
    print(len(locks))
"""


def ignore(_: object = None) -> None:
    return


def holder_of(lock: Path) -> str:
    holder = current_holder(lock)
    assert holder is not None
    return holder.what


@pytest.mark.slow
def test_who_waits_says_for_whom_and_goes_on_when_the_holder_is_killed(
    tmp_path: Path, root: Path
) -> None:
    lock = tmp_path / "work" / "gpu.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, lock], cwd=root, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        first = current_holder(lock)
        said: list[str] = []

        def kill_once_said() -> None:
            os.kill(holder.pid, signal.SIGKILL)

        with held(lock, "the second run", "uses the GPU", said.append, kill_once_said):
            assert holder_of(lock) == "the second run"
    assert first is not None
    assert (first.what, first.pid) == ("the first run", holder.pid)
    assert said == [
        f"waiting for the first run (process {holder.pid}, since {first.since}), which uses the GPU. To stop it, press "
        f"Ctrl-C in its terminal or run `kill {holder.pid}`; Ctrl-C here ends the waiting alone."
    ]


def test_a_run_that_is_cancelled_while_it_waits_does_not_hold_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "gpu.lock"

    def cancel() -> None:
        raise KeyboardInterrupt

    with held(lock, "the first run", "uses the GPU", ignore):
        with (
            pytest.raises(KeyboardInterrupt),
            held(lock, "the second run", "uses the GPU", ignore, cancel),
        ):
            pytest.fail("held twice")
        assert holder_of(lock) == "the first run"
    with held(lock, "the third run", "uses the GPU", ignore, cancel):
        assert holder_of(lock) == "the third run"
    assert current_holder(lock) is None


@pytest.mark.slow
def test_the_gpu_is_free_when_the_last_process_on_it_has_ended(tmp_path: Path) -> None:
    lock, started, order = (tmp_path / name for name in ("gpu.lock", "started", "order"))
    os.mkfifo(started)
    on_term = f"sleep 1; echo ended > {order}; exit"
    slow_end = f"trap '{on_term}' TERM; echo > {started}; while :; do sleep .1; done"
    stage = [
        sys.executable,
        "-c",
        "import subprocess, sys; subprocess.run(['sh', '-c', sys.argv[1]])",
        slow_end,
    ]
    guard = ProcessGuard()
    with held(lock, "the first run", "uses the GPU", ignore) as descriptor:
        process = guard.start(stage, kept=[descriptor])
        started.read_text()
    assert process.poll() is None

    def close_guard() -> None:
        if process.poll() is None:
            guard.__exit__()

    with held(lock, "the second run", "uses the GPU", ignore, close_guard):
        assert order.read_text() == "ended\n"


@pytest.fixture
def three_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's list of three GPUs."""
    monkeypatch.setattr(locks, "DRIVER_LIST", tmp_path / "gpus")
    for number, uuid in enumerate(("GPU-cc1", "GPU-aa2", "GPU-aa3")):
        path = tmp_path / "gpus" / f"0000:0{number}:00.0" / "information"
        path.parent.mkdir(parents=True)
        path.write_text(f"Model: \t NVIDIA H100\nIRQ: 1\nGPU UUID: \t {uuid}\nBus Type: PCIe\n")


@pytest.mark.usefixtures("three_gpus")
@pytest.mark.parametrize(
    ("variable", "devices"),
    [
        (None, ["GPU-aa2", "GPU-aa3", "GPU-cc1"]),
        ("0", ["GPU-cc1"]),
        ("1,0", ["GPU-aa2", "GPU-cc1"]),
        ("GPU-c", ["GPU-cc1"]),
        (" GPU-aa3 , 0", ["GPU-aa3", "GPU-cc1"]),
        ("GPU-aa", ["GPU-aa"]),
        ("MIG-1/2", ["MIG-1-2"]),
        ("7", ["7"]),
        ("", []),
    ],
)
def test_a_gpu_has_one_lock_however_it_is_named_and_several_are_taken_in_one_order(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, devices: list[str]
) -> None:
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_devices() == devices
    monkeypatch.setenv("TMPDIR", "/somewhere/of/mine")
    names = [f"/tmp/deepsearch-gpu-{device}.lock" for device in devices]
    assert [str(path) for path in gpu_locks()] == names


def test_without_a_driver_the_entries_are_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "DRIVER_LIST", tmp_path / "none")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices() == ["all"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert visible_devices() == ["0", "1"]


def test_every_user_can_open_the_file_of_a_lock(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with held(tmp_path / "gpu.lock", "mine", "uses the GPU", ignore):
            assert (tmp_path / "gpu.lock").stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)


@pytest.mark.slow
def test_a_lock_whose_file_was_removed_still_has_one_holder_at_a_time(tmp_path: Path) -> None:
    lock, first = tmp_path / "run.lock", ExitStack()
    first.enter_context(held(lock, "the first run", "works", ignore))

    def remove_and_end_first() -> None:
        lock.unlink(missing_ok=True)
        first.close()

    with held(lock, "the second run", "works", ignore, remove_and_end_first):
        assert holder_of(lock) == "the second run"


@pytest.mark.slow
def test_who_does_not_know_of_the_lock_is_waited_for_without_holding_it(tmp_path: Path) -> None:
    lock = run_lock(tmp_path, "tiny")
    foreign = Holder("dvc repro", os.getpid(), "now")
    others: list[Holder | None] = [foreign, foreign, None]
    said: list[str] = []

    def check() -> None:
        assert current_holder(lock) is None

    with run_held(tmp_path, "tiny", "our run", said.append, check, lambda: others.pop(0)):
        assert holder_of(lock) == "our run"
    assert len(said) == 1
    assert (
        f"dvc repro (process {os.getpid()}, since now), which works on the profile tiny" in said[0]
    )


def test_what_a_run_starts_does_not_wait_for_it(tmp_path: Path, root: Path) -> None:
    command = [sys.executable, "-c", HELD_ABOVE, tmp_path]
    with run_held(tmp_path, "tiny", "the outer run", ignore):
        inner = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        left_behind = dict(os.environ)
    assert inner.stdout == "0\n"
    assert LOCKS_VARIABLE not in os.environ
    # What goes on after its run has ended waits and is waited for, as everybody else.
    later = subprocess.run(
        command, cwd=root, env=left_behind, capture_output=True, text=True, check=True
    )
    assert later.stdout == "1\n"


def test_two_profiles_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with (
        run_held(tmp_path, "tiny", "one run", pytest.fail),
        run_held(tmp_path, "smoke", "another", pytest.fail),
    ):
        assert holder_of(run_lock(tmp_path, "smoke")) == "another"
