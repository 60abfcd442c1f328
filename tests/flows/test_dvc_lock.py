"""DVC's lock file, half written by a DVC that was killed with SIGKILL."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deepsearch_rl.core.dvc_lock import LOCK_FILES, repair_dvc_locks
from deepsearch_rl.core.errors import ConfigError
from tests.flows.conftest import MakeProject

KILLED_WHILE_WRITING = """
import json, os, signal, sys
import dvc.rwlock
from dvc.cli import main

def dump_half(lock, file):
    text = json.dumps(lock)
    file.write(text[: len(text) // 2])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

dvc.rwlock.json.dump = dump_half
main(sys.argv[1:])
"""
STAGES = {"write": {"cmd": "echo text > text.txt", "outs": ["text.txt"]}}
DVC = [sys.executable, "-m", "dvc"]


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    """An unreadable lock file in a folder that looks like a DVC project."""
    path = tmp_path / LOCK_FILES[0]
    path.parent.mkdir(parents=True)
    path.write_text('{"write": {"/data": {"pid":')
    path.with_name("rwlock.lock").write_text(" 1\n")
    return path


def test_an_unreadable_lock_file_is_removed_and_the_user_is_told(
    tmp_path: Path, lock_file: Path
) -> None:
    (message,) = repair_dvc_locks(tmp_path)
    assert str(lock_file) in message
    assert "killed" in message
    assert not lock_file.exists()
    assert repair_dvc_locks(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"\0" * 80])
def test_whatever_a_kill_or_a_power_cut_leaves_is_repaired(
    tmp_path: Path, lock_file: Path, content: bytes
) -> None:
    lock_file.write_bytes(content)
    assert repair_dvc_locks(tmp_path)
    assert not lock_file.exists()


def test_the_lock_file_of_experiments_is_repaired_too(tmp_path: Path) -> None:
    path = tmp_path / LOCK_FILES[1]
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert repair_dvc_locks(tmp_path)
    assert not path.exists()


def test_a_readable_lock_file_stays(tmp_path: Path, lock_file: Path) -> None:
    lock_file.write_text('{"write": {}, "read": {}}')
    assert repair_dvc_locks(tmp_path) == []
    assert lock_file.exists()


def test_a_folder_without_dvc_needs_no_repair(tmp_path: Path) -> None:
    assert repair_dvc_locks(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_living_process_is_writing_stays(tmp_path: Path, lock_file: Path) -> None:
    with lock_file.with_name("rwlock.lock").open("a+") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        assert repair_dvc_locks(tmp_path) == []
        assert lock_file.exists()
    assert repair_dvc_locks(tmp_path)


def test_a_file_that_names_a_living_process_stays_and_the_process_is_named(
    tmp_path: Path, lock_file: Path
) -> None:
    with subprocess.Popen(["sleep", "600"]) as holder:
        lock_file.write_text(
            json.dumps({"write": {"/data": {"pid": holder.pid, "cmd": "dvc repro"}}})[:-1]
        )
        with pytest.raises(ConfigError, match=rf"`sleep 600` \(pid {holder.pid}\)"):
            repair_dvc_locks(tmp_path)
        assert lock_file.exists()
        holder.kill()
        holder.wait()
        assert repair_dvc_locks(tmp_path)


def test_a_process_that_began_after_the_file_was_written_does_not_hold_it(
    tmp_path: Path, lock_file: Path
) -> None:
    lock_file.write_text(
        json.dumps({"read": {"/data": [{"pid": os.getpid(), "cmd": "dvc repro"}]}})[:-1]
    )
    before = psutil.Process().create_time() - 60
    os.utime(lock_file, (before, before))
    assert repair_dvc_locks(tmp_path)


@pytest.mark.slow
def test_dvc_runs_again_after_the_repair_of_what_a_killed_dvc_left(
    make_project: MakeProject,
) -> None:
    root = make_project(STAGES)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_WRITING, "repro"], cwd=root, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    refused = subprocess.run([*DVC, "repro"], cwd=root, capture_output=True, text=True, check=False)
    assert "JSON structure is corrupted" in refused.stderr
    entry_point = [sys.executable, "-m", "deepsearch_rl.core.project_state"]
    assert (
        "a DVC command was killed while it wrote it"
        in subprocess.run(entry_point, cwd=root, capture_output=True, text=True, check=True).stderr
    )
    subprocess.run([*DVC, "repro"], cwd=root, check=True)
    assert (root / "text.txt").read_text() == "text\n"


@pytest.mark.slow
def test_nothing_is_repaired_while_another_dvc_runs_a_stage(make_project: MakeProject) -> None:
    root = make_project(
        {"long": {"cmd": "echo > started; cat go > text.txt", "outs": ["text.txt"]}}
    )
    for name in ("started", "go"):
        os.mkfifo(root / name)
    with subprocess.Popen([*DVC, "repro"], cwd=root) as dvc:
        (root / "started").read_text()
        lock_file = root / LOCK_FILES[0]
        readable = lock_file.read_text()
        lock_file.write_text("")
        with pytest.raises(ConfigError, match=rf"dvc repro` \(pid {dvc.pid}\)"):
            repair_dvc_locks(root)
        lock_file.write_text(readable)
        (root / "go").write_text("text\n")
    assert dvc.returncode == 0
