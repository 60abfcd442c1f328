"""Malformed and hostile requests over all routes; ``python -m benchmarks.hostile`` sends ten times as many."""

from pathlib import Path

import pytest

from benchmarks.hostile import besiege
from benchmarks.hostile_requests import draw_requests
from benchmarks.servers import running_server
from deepsearch_rl.server.config import RetrievalConfig


def test_a_seed_names_its_requests() -> None:
    assert list(draw_requests(200, seed=1)) == list(draw_requests(200, seed=1))
    assert list(draw_requests(200, seed=1)) != list(draw_requests(200, seed=2))


@pytest.mark.nightly
def test_a_thousand_hostile_requests_leave_the_server_up_small_and_right(
    index_dir: Path, chunks_path: Path, retrieval_config: RetrievalConfig
) -> None:
    options = ["--retriever", "hybrid", "--top-k", "2", "--pages", str(retrieval_config.pages)]
    with running_server((index_dir, chunks_path), options, core=None) as server:
        # Memory is given back every ten seconds
        siege = besiege(server, count=1000, seed=0, settle_s=11)
    assert siege.problems == []
    # Many kinds were answered in many ways
    assert sum(map(len, siege.statuses.values())) > 30
