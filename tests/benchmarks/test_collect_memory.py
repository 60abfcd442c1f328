"""The benchmark of memory makes the bulk run that it measures."""

import tracemalloc

import pytest

from benchmarks.collect_memory import PASSAGE_BYTES, SEARCHES, measure


@pytest.mark.slow
def test_a_bulk_run_is_collected_and_scored_and_its_figures_are_bytes() -> None:
    try:
        artifact, collect, row, kept = measure(20)
    finally:
        tracemalloc.stop()
    assert artifact > 20 * SEARCHES * PASSAGE_BYTES
    assert kept > 20 * SEARCHES * PASSAGE_BYTES
    assert min(collect, row) >= 0
