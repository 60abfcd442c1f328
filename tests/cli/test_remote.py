"""`deepsearch remote` where no store is needed; tests/flows/test_machines.py has one."""

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import asyncssh
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli import remote
from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import CommandError, ConfigError, UnavailableError, UnknownNameError
from deepsearch_rl.core.processes import LOOPBACK


@pytest.fixture(scope="module")
def empty_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run(
        [sys.executable, "-m", "dvc", "init", "--quiet", "--no-scm"], cwd=folder, check=True
    )
    return folder


@pytest.fixture
def project(empty_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shutil.copytree(empty_project, tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


def set_remote(*arguments: str) -> BaseException | str:
    """What the command prints, or its error."""
    result = CliRunner().invoke(app, ["remote", "set", *arguments])
    return result.exception or result.output


def show() -> str:
    command = [sys.executable, "-m", "dvc", "remote", "list"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_folder_is_made_and_written_where_git_sees_it_or_with_local_where_it_does_not(
    project: Path,
) -> None:
    assert show() == ""
    assert "DVC's remote is ../storage." in str(set_remote("../storage"))
    assert (project.parent / "storage").is_dir()
    assert "url = ../../storage" in (project / ".dvc" / "config").read_text()
    assert show().split() == ["storage", str(project.parent / "storage"), "(default)"]
    set_remote("../other", "--local")
    assert "url = ../../other" in (project / ".dvc" / "config.local").read_text()
    assert show().split() == ["storage", str(project.parent / "other"), "(default)"], (
        "what is for this clone wins"
    )


def test_a_kind_that_dvc_does_not_have_is_named_with_those_that_it_has(project: Path) -> None:
    before = (project / ".dvc" / "config").read_text()
    error = set_remote("s4://bucket/deepsearch")
    assert isinstance(error, UnknownNameError)
    for name in ("'s4'", "gs", "s3", "ssh"):
        assert name in str(error)
    assert (project / ".dvc" / "config").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["file"], "file is a file; name a folder"),
        (["file/below"], "file is a file"),
        (["storage", "--endpoint", "http://127.0.0.1:9000"], "--endpoint is for an S3 store"),
        (["gs://bucket/x", "--endpoint", "http://127.0.0.1:9000"], "--endpoint is for an S3 store"),
    ],
)
def test_an_address_that_cannot_be_used_leaves_the_settings_as_they_are(
    arguments: list[str], problem: str, project: Path
) -> None:
    (project / "file").touch()
    before = (project / ".dvc" / "config").read_text()
    error = set_remote(*arguments)
    assert isinstance(error, ConfigError)
    assert problem in str(error)
    assert (project / ".dvc" / "config").read_text() == before


def test_a_remote_of_this_clone_alone_is_not_taken_for_the_one_that_is_set(project: Path) -> None:
    before = (project / ".dvc" / "config").read_text()
    own = project / ".dvc" / "config.local"
    own.write_text("['remote \"storage\"']\n    url = ../mine\n")
    assert "`dvc remote remove --local storage`" in str(set_remote("../storage"))
    own.write_text("[core]\n    remote = mine\n")
    assert "for this clone alone" in str(set_remote("../storage"))
    assert (project / ".dvc" / "config").read_text() == before


def test_a_missing_plugin_is_named_with_the_command_that_installs_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (project / ".dvc" / "config").read_text()
    monkeypatch.setattr(remote, "installed_version", lambda name: "" if name == "dvc-gs" else "1")
    error = set_remote("gs://bucket/deepsearch")
    assert isinstance(error, UnavailableError)
    assert "dvc-gs" in str(error)
    assert "`make environment EXTRAS='--extra gs'`" in str(error)
    assert (project / ".dvc" / "config").read_text() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["s3://KEY:correct-horse@bucket/deepsearch"],
        ["ssh://team:correct-horse@server/storage"],
        ["s3://bucket/deepsearch", "--endpoint", "http://KEY:correct-horse@store:9000"],
        ["s3://bucket/correct-horse@deepsearch"],
    ],
)
def test_an_address_with_a_password_is_refused_and_not_shown(
    project: Path, arguments: list[str]
) -> None:
    before = (project / ".dvc" / "config").read_text()
    error = set_remote(*arguments)
    assert isinstance(error, ConfigError)
    assert "holds a password" in str(error)
    assert "horse" not in str(error)
    assert (project / ".dvc" / "config").read_text() == before


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_a_host_that_does_not_answer_is_an_error_that_says_what_to_look_at() -> None:
    error = set_remote("ssh://127.0.0.1:1/storage")
    assert isinstance(error, CommandError)
    assert "127.0.0.1" in str(error)
    assert "SSH key" in str(error)


@pytest.mark.slow
def test_outside_of_a_project_dvc_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = set_remote("storage")
    assert isinstance(error, CommandError)
    assert "Not inside a DVC repo" in str(error)


class EveryoneMayEnter(asyncssh.SSHServer):
    """An SSH server that asks nobody who they are."""

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh's arguments
        return False


@pytest.fixture
def ssh_port() -> Iterator[int]:
    """The port of an SSH server on loopback that offers files."""
    ports, loop, ended = SimpleQueue[int](), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        keys = [asyncssh.generate_private_key("ssh-ed25519")]
        options = {
            "server_factory": EveryoneMayEnter,
            "server_host_keys": keys,
            "sftp_factory": True,
        }
        async with await asyncssh.listen(LOOPBACK, 0, **options) as server:
            ports.put(server.get_port())
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    yield ports.get(timeout=30)
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_a_file_is_written_to_a_host_with_ssh(ssh_port: int, tmp_path: Path) -> None:
    assert "DVC's remote is ssh://" in str(
        set_remote(f"ssh://{LOOPBACK}:{ssh_port}{tmp_path}/storage")
    )
    [file] = [path for path in (tmp_path / "storage").rglob("*") if path.is_file()]
    assert file.read_text() == "deepsearch remote set\n"
