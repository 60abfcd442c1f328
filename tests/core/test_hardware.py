"""What the machine has."""

import os
from pathlib import Path

import pytest

from deepsearch_rl.core.hardware import usable_cores

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, CORES),
        ({"cpu.max": "max 100000"}, CORES),
        ({"cpu.max": "no numbers"}, CORES),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "150000 100000"}, min(CORES, 2)),
        ({"cpu.max": "99900000 100000"}, CORES),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, CORES),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_a_containers_quota_counts_beside_the_affinity(
    tmp_path: Path, files: dict[str, str], cores: int
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")

    assert usable_cores(tmp_path) == cores


def test_no_more_cores_than_those_of_the_affinity_are_usable(tmp_path: Path) -> None:
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(affinity)})
    try:
        assert usable_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, affinity)
