"""Fetching from a hub on the loopback: resumed after a kill on either side, checked, never whole before it is."""

import contextlib
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest
from huggingface_hub import constants
from pydantic import ValidationError

from deepsearch_rl.core.errors import CheckFailedError, EndpointError
from deepsearch_rl.data.download import (
    CorpusSource,
    DownloadConfig,
    FolderConfig,
    QuestionSource,
    download,
)
from deepsearch_rl.data.hub import HubConfig, HubRepository, fetch
from tests.search_servers import in_thread

REVISION = "0123456789abcdef0123456789abcdef01234567"
CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME = "data/file.bin"


class Hub(ThreadingHTTPServer):
    """A hub that serves a repository, up to the byte ``cut_at`` where it calls ``on_cut`` and drops the connection."""

    daemon_threads = True

    def __init__(
        self,
        files: Mapping[str, bytes] = MappingProxyType({NAME: CONTENT}),
        etag: str | None = None,
        cut_at: int | None = None,
        refusals: Sequence[int] = (),
        on_cut: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.etag, self.cut_at, self.on_cut = files, etag, cut_at, on_cut
        self.refusals = list(refusals)
        self.ranges: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self.send_head(0)

    def do_GET(self) -> None:
        self.server.ranges.append(self.headers["Range"])
        if self.server.refusals:
            self.send_response(self.server.refusals.pop(0))
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        content = self.send_head(start)
        self.wfile.write(content[start : self.server.cut_at])
        if self.server.cut_at is not None:
            self.wfile.flush()
            self.server.on_cut()
            self.close_connection = True

    def send_head(self, start: int) -> bytes:
        content = self.server.files.get(
            self.path.removeprefix(f"/datasets/owner/set/resolve/{REVISION}/")
        )
        found = HTTPStatus.PARTIAL_CONTENT if start else HTTPStatus.OK
        self.send_response(HTTPStatus.NOT_FOUND if content is None else found)
        content = content or b""
        etag = hashlib.sha256(content).hexdigest() if self.server.etag is None else self.server.etag
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        return content

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    with in_thread(hub):
        yield hub


def config(endpoint: str, digest: str | None = SHA256, name: str = NAME) -> HubConfig:
    repository = HubRepository(repository="owner/set", revision=REVISION, files={name: digest})
    return HubConfig(endpoint=endpoint, attempts=1, repositories={"set": repository})


def files(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*") if path.is_file()]


def test_a_download_that_the_server_breaks_off_is_continued_and_looks_whole_only_when_it_is(
    tmp_path: Path,
) -> None:
    with (
        running(Hub(cut_at=300_000)) as hub,
        pytest.raises(EndpointError, match="continues where this one stopped"),
    ):
        fetch(config(hub.url), tmp_path)
    (partial,) = files(tmp_path)
    assert partial.endswith(".partial")
    with running(Hub()) as hub:
        fetch(config(hub.url), tmp_path)
        assert hub.ranges == ["bytes=300000-"]
    assert files(tmp_path) == ["file.bin"]
    assert (tmp_path / "set/data/file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("offline", [True, False])
def test_a_finished_file_needs_no_hub_where_params_name_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    with running(Hub()) as hub:
        fetch(config(hub.url, digest=None), tmp_path)
    # As HF_HUB_OFFLINE=1 does in a new process
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    nobody = "http://127.0.0.1:9"
    fetch(config(nobody), tmp_path)
    with pytest.raises(EndpointError, match=f"name its digest in place of null: {SHA256}"):
        fetch(config(nobody, digest=None), tmp_path)


@pytest.mark.slow
def test_a_download_whose_process_is_killed_is_continued(tmp_path: Path) -> None:
    written, released = threading.Event(), threading.Event()
    program = (
        "import sys; from pathlib import Path; from deepsearch_rl.data.hub import HubConfig, fetch; "
        "fetch(HubConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))"
    )

    def hold() -> None:
        while sum(path.stat().st_size for path in tmp_path.rglob("*.partial")) < 500_000:
            released.wait(0.01)
        written.set()
        released.wait()

    with running(Hub(cut_at=900_000, on_cut=hold)) as hub:
        arguments = [
            sys.executable,
            "-c",
            program,
            config(hub.url).model_dump_json(),
            str(tmp_path),
        ]
        client = subprocess.Popen(arguments, env=os.environ)
        assert written.wait(timeout=60)
        client.kill()
        client.wait()
        released.set()
    with running(Hub()) as hub:
        fetch(config(hub.url), tmp_path)
        assert int(hub.ranges[0].removeprefix("bytes=").removesuffix("-")) >= 500_000
    assert (tmp_path / "set" / NAME).read_bytes() == CONTENT


def test_a_break_within_the_attempts_is_mended_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepsearch_rl.data.hub.RECONNECT_WAIT_S", 0.0)
    with running(Hub(cut_at=500_000)) as hub:
        hub.on_cut = lambda: setattr(hub, "cut_at", None)
        fetch(config(hub.url).model_copy(update={"attempts": 2}), tmp_path)
        assert hub.ranges == ["bytes=0-", "bytes=500000-"]
    assert (tmp_path / "set/data/file.bin").read_bytes() == CONTENT


def test_a_busy_hub_is_asked_again_until_no_attempt_is_left(tmp_path: Path) -> None:
    with running(Hub(refusals=[429, 503])) as hub:
        with pytest.raises(EndpointError, match="was not fetched: status 503"):
            fetch(config(hub.url).model_copy(update={"attempts": 2}), tmp_path)
        hub.refusals = [429, 503]
        fetch(config(hub.url).model_copy(update={"attempts": 3}), tmp_path)
    assert (tmp_path / "set" / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "etag",
    [
        SHA256,
        hashlib.sha1(
            f"blob {len(CONTENT)}\0".encode() + CONTENT, usedforsecurity=False
        ).hexdigest(),
    ],
)
def test_without_a_digest_in_the_parameters_the_hubs_own_is_proved(
    tmp_path: Path, etag: str
) -> None:
    with running(Hub(etag=etag)) as hub:
        fetch(config(hub.url, digest=None), tmp_path)
    assert files(tmp_path) == ["file.bin"]
    (tmp_path / "set/data/file.bin").unlink()
    with (
        running(Hub(etag="0" * len(etag))) as hub,
        pytest.raises(CheckFailedError, match="not 0000"),
    ):
        fetch(config(hub.url, digest=None), tmp_path)


def test_a_file_with_another_digest_is_deleted_not_kept(tmp_path: Path) -> None:
    with running(Hub()) as hub, pytest.raises(CheckFailedError, match=SHA256):
        fetch(config(hub.url, digest="f" * 64), tmp_path)
    assert files(tmp_path) == []


def test_what_is_there_and_right_is_not_fetched_again_and_what_is_damaged_is(
    tmp_path: Path,
) -> None:
    with running(Hub()) as hub:
        fetch(config(hub.url), tmp_path)
        fetch(config(hub.url), tmp_path)
        assert len(hub.ranges) == 1
        (tmp_path / "set/data/file.bin").write_bytes(CONTENT[:1000])
        fetch(config(hub.url), tmp_path)
        assert len(hub.ranges) == 2
    assert (tmp_path / "set/data/file.bin").read_bytes() == CONTENT


def test_a_missing_file_a_server_without_digests_and_a_dead_server_are_named(
    tmp_path: Path,
) -> None:
    with running(Hub(etag="")) as hub:
        with pytest.raises(EndpointError, match="other"):
            fetch(config(hub.url, name="other"), tmp_path)
        with pytest.raises(EndpointError, match="names no digest"):
            fetch(config(hub.url, digest=None), tmp_path)
        address = hub.url
    with pytest.raises(EndpointError, match=address):
        fetch(config(address), tmp_path)


def test_a_repository_is_fetched_and_read_in_one_download(
    tmp_path: Path, multihoprag_repository: Path
) -> None:
    repository = {path.name: path.read_bytes() for path in multihoprag_repository.iterdir()}
    question_sets = {
        "multihoprag": (
            QuestionSource(
                format="multihoprag",
                path=Path("set"),
                shuffle_seed=42,
                splits={"val": 1, "train": None},
            ),
        )
    }
    folder = FolderConfig(
        root=tmp_path / "hub",
        corpora={"multihoprag": CorpusSource(format="multihoprag", path=Path("set"))},
        questions=question_sets,
    )
    pinned = HubRepository(
        repository="owner/set", revision=REVISION, files=dict.fromkeys(repository)
    )
    with running(Hub(repository)) as hub:
        hub_config = HubConfig(endpoint=hub.url, attempts=1, repositories={"set": pinned})
        config = DownloadConfig(source="hub", hub=hub_config, folder=folder)
        written = download(config, 0, tmp_path / "corpora", tmp_path / "questions")
    assert written == {"multihoprag": 3, "multihoprag/val": 1, "multihoprag/train": 3}


def test_the_login_in_the_address_of_a_hub_that_does_not_answer_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match=r"http://\*{3}@127.0.0.1:1/\S+ was not") as raised:
        fetch(config("http://bob:hidden@127.0.0.1:1"), tmp_path)
    assert "hidden" not in str(raised.value)


def test_a_branch_name_is_no_revision() -> None:
    with pytest.raises(ValidationError, match="revision"):
        HubRepository(repository="owner/set", revision="main", files={})
