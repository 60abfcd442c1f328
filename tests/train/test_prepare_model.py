import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest
from huggingface_hub import constants

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
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": bytes(range(256)) * 40,
    "README.md": b"no",
}
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
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    with in_thread(server):
        set_address(monkeypatch, f"http://127.0.0.1:{server.server_port}")
        yield


@pytest.mark.usefixtures("hub")
def test_a_snapshot_brings_weights_and_configs_as_plain_files(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    config = ModelHubConfig(repository="me/tiny", revision=REVISION)
    prepare_model(PrepareModelConfig(source="hub", hub=config), "tiny", 0, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: FILES[name] for name in ("config.json", "model.safetensors")
    }
    assert not [path for path in folder.iterdir() if path.is_symlink()]


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
