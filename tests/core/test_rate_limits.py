"""A limit of requests that all processes of a machine share."""

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepsearch_rl.core.rate_limits import MachineLimit

PER_SECOND = 5.0
PLACES = f"""
import time
from deepsearch_rl.core.rate_limits import MachineLimit
limit = MachineLimit("https://search.example", {PER_SECOND})
for _ in range(4):
    begun = time.monotonic()
    print(begun + limit.take_place())
"""


@pytest.mark.slow
def test_processes_and_their_threads_share_one_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    processes: list[subprocess.Popen[str]] = []
    for _ in range(3):
        command = [sys.executable, "-c", PLACES]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        processes.append(process)

    places: list[float] = []
    for process in processes:
        output, _ = process.communicate(timeout=60)
        places += map(float, output.split())

    assert len(places) == 12
    places.sort()
    gaps = [later - earlier for earlier, later in itertools.pairwise(places)]
    # Each process names its places by its own look at the clock
    assert min(gaps) > 1 / PER_SECOND - 0.05

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert MachineLimit("https://search.example", PER_SECOND).take_place() > 0
    assert MachineLimit("https://another.example", PER_SECOND).take_place() == 0


def test_a_place_from_before_the_machines_start_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    limit = MachineLimit("https://search.example", 1)
    assert limit.take_place() == 0

    (path,) = tmp_path.glob("*/requests-*")
    path.write_text(f"{time.time() - time.monotonic() - 9000} {time.monotonic() + 500}")
    assert limit.take_place() == 0
    path.write_text("")
    assert limit.take_place() == 0
    assert limit.take_place() > 0
