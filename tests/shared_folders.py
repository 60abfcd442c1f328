"""Folders that take a second or more to make, which all processes of one run of the tests share.

pytest makes a fixture of scope session once in each process, and once more for every conftest that
imports it. What these fixtures return is read alone, so one folder does for all of them.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.smoke_copy import only_process


def shared_folder(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """Return the run's folder of a name; the first one that asks lets ``make`` fill it."""
    base = factory.getbasetemp()
    # Each process of pytest-xdist has a folder of its own in that of the run
    is_one_of_several = "PYTEST_XDIST_WORKER" in os.environ
    place = (base.parent if is_one_of_several else base) / f"shared-{name}"
    place.mkdir(exist_ok=True)
    folder = place / name
    with only_process(place):
        if not folder.exists():
            unfinished = Path(tempfile.mkdtemp(dir=place))
            make(unfinished)
            unfinished.rename(folder)

    return folder
