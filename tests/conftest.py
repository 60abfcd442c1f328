"""What all tests share: the stages' environment; slow tests last; gpu and realdata skipped where they cannot run."""

import shutil
from pathlib import Path

import pytest
from hypothesis import settings

import stages  # noqa: F401  sets the environment before any numeric library is imported

ROOT = Path(__file__).resolve().parent.parent
REAL_DATA = ROOT.parent / "shared" / "data"
settings.register_profile("busy machine", deadline=None)  # an example that waits for its turn is no failure
settings.load_profile("busy machine")


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real question sets; tests that use it carry the marker realdata."""
    return REAL_DATA


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    skips = {
        "gpu": (shutil.which("nvidia-smi") is None, "no GPU: nvidia-smi is not installed"),
        "realdata": (not REAL_DATA.is_dir(), f"no real question sets at {REAL_DATA}"),
    }
    for item in items:
        for marker, (skip, reason) in skips.items():
            if skip and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
