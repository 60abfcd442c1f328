"""The finished smoke graph of the tests."""

from pathlib import Path

import pytest

from tests.pipeline.smoke_copy import finished_smoke_graph


@pytest.fixture(scope="session")
def smoke_cache(request: pytest.FixtureRequest) -> Path:
    """The folder in which one run of the tests leaves the results of the smoke graph to the next one."""
    assert request.config.cache is not None
    return request.config.cache.mkdir("smoke-graph")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, smoke_cache: Path) -> Path:
    """A copy of the working tree in which the smoke graph has run; a test leaves its results as they are."""
    return finished_smoke_graph(tmp_path_factory.mktemp("smoke"), smoke_cache)
