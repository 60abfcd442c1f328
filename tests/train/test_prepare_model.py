import json
import shutil
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest
from huggingface_hub import constants

from deepsearch_rl.chat.prompts import load_chat_template
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.train.prepare_model import (
    DESCRIPTIONS,
    ModelHubConfig,
    PrepareModelConfig,
    prepare_model,
    snapshot,
)
from tests.search_servers import in_thread

REVISION = "cdbee75f17c01a7cc42f958dc650907174af0554"
FILES: dict[str, bytes] = {}
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's HTTP interface as a snapshot download asks for."""

    def do_GET(self) -> None:
        if self.path.startswith(f"/api/models/me/tiny/tree/{REVISION}"):
            files = [
                {"type": "file", "path": name, "size": len(data), "oid": name}
                for name, data in FILES.items()
            ]
            self.reply(200, json.dumps(files).encode(), "application/json")
        else:
            self.send_file()

    def do_HEAD(self) -> None:
        self.send_file()

    def send_file(self) -> None:
        name = self.path.removeprefix(f"/me/tiny/resolve/{REVISION}/")
        if name in FILES:
            self.reply(200, FILES[name], "application/octet-stream")
        else:
            self.reply(404, b"{}", "application/json", {"X-Error-Code": "RepoNotFound"})

    def reply(
        self, status: int, body: bytes, kind: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self.send_response(status)
        fields = {"Content-Type": kind, "Content-Length": str(len(body)), "ETag": f'"{len(body)}"'}
        for name, value in {**fields, "X-Repo-Commit": REVISION, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def set_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """As the variable HF_ENDPOINT does in a new process."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub with the repository me/tiny, and an empty cache."""
    for file in llama.iterdir():
        monkeypatch.setitem(FILES, file.name, file.read_bytes())
    monkeypatch.setitem(FILES, "chat_template.jinja", load_chat_template().encode())
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    with in_thread(server):
        set_address(monkeypatch, f"http://127.0.0.1:{server.server_port}")
        yield


MODEL = ModelHubConfig(repository="me/tiny", revision=REVISION)


def cut_off(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Take the hub away: as HF_HUB_OFFLINE=1 does in a new process, or with nobody at its address."""
    if how == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        set_address(monkeypatch, "http://127.0.0.1:9")


def without_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a cache as transformers and older versions leave it: without the list of the commit's files."""
    # The list stays in memory by its path
    shutil.copytree(tmp_path / "cache", tmp_path / "older", symlinks=True)
    [trees] = (tmp_path / "older").rglob("trees")
    shutil.rmtree(trees)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "older"))


@pytest.mark.usefixtures("hub")
def test_a_snapshot_brings_weights_and_configs_as_plain_files(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    prepare_model(PrepareModelConfig(source="hub", hub=MODEL), "tiny", 0, folder)
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    # Which gets the end of a turn
    del written["generation_config.json"]
    assert written == {name: FILES[name] for name in written}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= written.keys()
    assert "optimizer.pt" not in written
    assert not [path for path in folder.iterdir() if path.is_symlink()]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("how", ["offline", "no answer"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_commit_in_the_cache_needs_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, listed: bool
) -> None:
    prepare_model(PrepareModelConfig(source="hub", hub=MODEL), "tiny", 0, tmp_path / "online")
    if not listed:
        without_list(tmp_path, monkeypatch)
    cut_off(monkeypatch, how)
    prepare_model(PrepareModelConfig(source="hub", hub=MODEL), "tiny", 0, tmp_path / "base")
    assert (tmp_path / "base/model.safetensors").read_bytes() == FILES["model.safetensors"]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("how", "message"),
    [("offline", "HF_HUB_OFFLINE.*source: folder"), ("no answer", "HF_ENDPOINT")],
)
@pytest.mark.parametrize("listed", [True, False])
def test_a_cache_without_the_weights_needs_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, message: str, listed: bool
) -> None:
    snapshot(MODEL, DESCRIPTIONS)
    if not listed:
        without_list(tmp_path, monkeypatch)
    cut_off(monkeypatch, how)
    with pytest.raises(EndpointError, match=message):
        prepare_model(PrepareModelConfig(source="hub", hub=MODEL), "tiny", 0, tmp_path / "base")


@pytest.mark.usefixtures("hub")
def test_a_repository_that_is_not_there_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="me/other"):
        snapshot(ModelHubConfig(repository="me/other", revision=REVISION), DESCRIPTIONS)


def test_a_hub_that_does_not_answer_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    set_address(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(EndpointError, match="HF_ENDPOINT"):
        snapshot(ModelHubConfig(repository="me/tiny", revision=REVISION), DESCRIPTIONS)


def test_a_revision_that_can_move_is_refused() -> None:
    with pytest.raises(ValueError, match="revision"):
        ModelHubConfig(repository="me/tiny", revision="main")
