"""What all tests share: the stages' environment, the order, and what is skipped where it cannot run.

Each process of pytest-xdist has a folder for temporary files of its own, so that locks that hold
for one machine, such as the one of its GPU, hold for one process.

Three things only save time: modules are compiled once, in a new environment by the first process
alone, the garbage collector leaves alone what is loaded before the first test, and ART, which some
tests import, does not get to replace asyncio's tasks for all others.
"""

import atexit
import fcntl
import functools
import gc
import os
import shutil
import ssl
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import httpcore2
import nest_asyncio
import pytest
from hypothesis import settings

import stages  # noqa: F401  sets the environment before any numeric library is imported

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as the Makefile does
os.environ.pop("MLFLOW_TRACKING_URI", None)  # the project's own store is not for tests
sys.dont_write_bytecode = False
IS_ONE_OF_SEVERAL = "PYTEST_XDIST_WORKER" in os.environ
if IS_ONE_OF_SEVERAL:
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="deepsearch-")
    # PostgreSQL runs as a user of its own, who has to come through to its files
    Path(tempfile.tempdir).chmod(0o755)
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)
gc.disable()
nest_asyncio.apply = lambda loop=None: None  # noqa: ARG005
ROOT = Path(__file__).resolve().parent.parent
REAL_DATA = ROOT.parent / "shared" / "data"
LONGEST = frozenset({ROOT / "tests" / "pipeline" / "test_smoke.py"})
"""Files that take a process minutes: it begins with them, so that the others have something to do until its end.

`pytest --durations=0` says what belongs here.
"""
INSTALLED = ROOT / ".venv" / ".installed"
"""What `make environment` writes last."""
COMPILED = "compiled/environment"
"""Where pytest's cache says of which environment the modules are compiled."""
# An example that waits for its turn is no failure
settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real question sets; tests that use it carry the marker realdata."""
    return REAL_DATA


@pytest.fixture(autouse=True, scope="session")
def one_tls_context() -> Iterator[None]:
    """Share the TLS contexts: every new HTTP client reads all certificates, and no server of the tests has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        patch.setattr(
            httpcore2, "default_ssl_context", functools.cache(httpcore2.default_ssl_context)
        )
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """In a new environment, let one process collect before the others do: it compiles what all of them import."""
    cache = session.config.cache
    environment = INSTALLED.stat().st_mtime_ns if INSTALLED.is_file() else None
    if not IS_ONE_OF_SEVERAL or cache is None or cache.get(COMPILED, None) == environment:
        return (yield)

    with (cache.mkdir("compiled") / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # All that waited go on side by side
            fcntl.flock(lock, fcntl.LOCK_SH)
        result = yield

    cache.set(COMPILED, environment)
    return result


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path not in LONGEST)
    skips = {
        "gpu": (shutil.which("nvidia-smi") is None, "no GPU: nvidia-smi is not installed"),
        "realdata": (not REAL_DATA.is_dir(), f"no real question sets at {REAL_DATA}"),
    }
    for item in items:
        for marker, (skip, reason) in skips.items():
            if skip and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
