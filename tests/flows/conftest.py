"""A small real DVC project in a temporary folder, and one real Prefect server for all tests of a process."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import prefect
import pytest
import yaml
from dvc.repo import Repo
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from deepsearch_rl.core.processes import LOOPBACK
from flows import server
from tests.pipeline.smoke_copy import only_process
from tests.ports import free_port

PROFILE = "profile: tiny\nflow: {gpu_stages: [], outside_stages: []}\n"

CHAIN = {
    "write": {
        "cmd": "echo ran >> runs.log; echo ${number} > number.txt",
        "params": ["number"],
        "outs": ["number.txt"],
    },
    "round": {
        "cmd": "cut -c1 number.txt > digit.txt; echo 'round: 1/1 digits'",
        "deps": ["number.txt"],
        "outs": ["digit.txt"],
    },
    "report": {
        "cmd": "mkdir -p reports/tiny; echo '| digit |' | cat - digit.txt > reports/tiny/f1_table.md",
        "deps": ["digit.txt"],
        "outs": ["reports/tiny/f1_table.md"],
    },
}
# mkdir fails if the other one is inside at the same time.
TAKING_TURNS = {
    name: {
        "cmd": f"mkdir gpu.lock && sleep 1 && rmdir gpu.lock && echo > {name}.txt",
        "outs": [f"{name}.txt"],
    }
    for name in ("sft", "evaluate")
}

SEND_LIMIT_S = 20.0


def changed_stages(root: Path) -> set[str]:
    """Return the stages of which `dvc status` says that something changed, or that they never ran."""
    with Repo(str(root)) as repo:
        return set(repo.status())


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module."""
    return [sys.executable, "-m", module, *arguments]


def take_sigint() -> None:
    """A shell starts its background jobs with SIGINT ignored, which they would hand down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="session")
def prefect_tables(request: pytest.FixtureRequest) -> Path:
    """The database of a Prefect server that has just started; there once ``prefect_server`` was asked for.

    To make the tables takes a server longer than the rest of its start, so one run of the tests
    leaves them to the next one.
    """
    assert request.config.cache is not None
    return request.config.cache.mkdir("prefect") / f"{prefect.__version__}.db"


@pytest.fixture(scope="package")
def prefect_server(tmp_path_factory: pytest.TempPathFactory, prefect_tables: Path) -> Iterator[str]:
    """The address of a Prefect server with all its services, as `make ui` starts it.

    It ends with the last test of this folder: its services look at the database all the time.
    """
    folder = tmp_path_factory.mktemp("prefect")
    shutil.copy(server.ROOT / "prefect.toml", folder)
    database = folder / "prefect.db"
    api = f"http://{LOOPBACK}:{free_port()}/api"
    with (
        pytest.MonkeyPatch.context() as patch,
        temporary_settings({PREFECT_API_URL: api, PREFECT_HOME: folder}),
        ExitStack() as running,
    ):
        patch.setattr(server, "ROOT", folder)
        patch.setenv("PREFECT_HOME", str(folder))
        patch.setenv("PREFECT_API_URL", api)
        with only_process(prefect_tables.parent):
            if prefect_tables.exists():
                shutil.copyfile(prefect_tables, database)
            running.enter_context(server.prefect_api())
            if not prefect_tables.exists():
                copy_database(database, prefect_tables)

        yield api
        end_senders()


def copy_database(database: Path, copy: Path) -> None:
    """Copy a SQLite database that a server may be writing to."""
    unfinished = copy.with_suffix(".unfinished")
    with (
        closing(sqlite3.connect(database)) as source,
        closing(sqlite3.connect(unfinished)) as target,
    ):
        source.backup(target)
    unfinished.replace(copy)


def end_senders() -> None:
    """End the threads that send Prefect's logs and events, which keep the address that they first had.

    What they have not sent by then is lost. Nothing here reads it, and with a server that is away
    each event takes a minute.
    """
    for sender in (APILogWorker, EventsWorker):
        sender.drain_all(timeout=SEND_LIMIT_S, at_exit=False)


MakeProject = Callable[..., Path]


@pytest.fixture(scope="session")
def empty_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with fresh git and DVC repositories; making them takes seconds, copying them does not."""
    folder = tmp_path_factory.mktemp("project")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    Repo.init(str(folder)).close()
    return folder


@pytest.fixture
def make_project(
    empty_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MakeProject:
    """Make a git and DVC project of the given stages in a folder that becomes the working directory."""

    def make(stages: dict[str, object], params: str = PROFILE) -> Path:
        monkeypatch.chdir(tmp_path)
        return fill_project(empty_project, tmp_path, stages, params)

    return make


def fill_project(
    empty_project: Path, folder: Path, stages: Mapping[str, object], params: str = PROFILE
) -> Path:
    """Make a project of the given stages in a folder that exists or not."""
    shutil.copytree(empty_project, folder, dirs_exist_ok=True)
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    (folder / "params.yaml").write_text(params)
    return folder
