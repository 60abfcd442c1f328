import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deepsearch_rl.agent.search_tool import open_session
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.redaction import RETRIEVAL_TOKEN
from deepsearch_rl.server.config import RetrievalConfig
from deepsearch_rl.server.launch import serve_index
from deepsearch_rl.train.verl.cluster import facts

SERVE_UNTIL_KILLED = """
import sys
from pathlib import Path
from deepsearch_rl.server.launch import RetrievalConfig, serve_index
with serve_index(Path(sys.argv[1]), Path(sys.argv[2]), RetrievalConfig.model_validate_json(sys.argv[3])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""
STARTED_WITHOUT_AN_INDEX = (
    r"the retrieval server ended with exit code 1;[\s\S]*manifest\.json does not exist"
)


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


@pytest.mark.nightly
def test_the_server_stops_when_its_parent_is_killed(
    index_dir: Path, chunks_path: Path, retrieval_config: RetrievalConfig
) -> None:
    command = [
        sys.executable,
        "-c",
        SERVE_UNTIL_KILLED,
        str(index_dir),
        str(chunks_path),
        retrieval_config.model_dump_json(),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        url = parent.stdout.readline().strip()
        with socket.create_connection(address(url), timeout=20) as connection:
            parent.send_signal(signal.SIGKILL)
            # The server closes its connections as it stops
            assert connection.recv(1) == b""


@pytest.mark.slow
def test_a_server_that_cannot_start_tells_why(
    chunks_path: Path, retrieval_config: RetrievalConfig, tmp_path: Path
) -> None:
    serving = serve_index(tmp_path, chunks_path, retrieval_config)
    with pytest.raises(EndpointError, match=STARTED_WITHOUT_AN_INDEX) as raised:
        serving.__enter__()
    assert "Traceback" not in str(raised.value)


@pytest.mark.slow
def test_a_server_with_a_token_is_searched_by_those_who_have_it(
    index_dir: Path,
    chunks_path: Path,
    retrieval_config: RetrievalConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(RETRIEVAL_TOKEN, "token-of-this-test")

    async def tools(url: str) -> int:
        async with open_session(url, 20) as session:
            return len((await session.list_tools()).tools)

    serving = serve_index(index_dir, chunks_path, retrieval_config, token_variable=RETRIEVAL_TOKEN)
    with serving as url:
        assert asyncio.run(tools(url)) == 1
        assert facts("here", 0, url)["retrieval"] == ""

        monkeypatch.setenv(RETRIEVAL_TOKEN, "another")
        with pytest.raises(EndpointError, match=f"status 401; set {RETRIEVAL_TOKEN}"):
            asyncio.run(tools(url))
        monkeypatch.delenv(RETRIEVAL_TOKEN)
        assert f"401: Unauthorized; export {RETRIEVAL_TOKEN}" in facts("here", 0, url)["retrieval"]


def test_a_token_that_is_not_set_and_an_address_of_another_machine_are_named(
    index_dir: Path,
    chunks_path: Path,
    retrieval_config: RetrievalConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(RETRIEVAL_TOKEN, raising=False)
    serving = serve_index(index_dir, chunks_path, retrieval_config, token_variable=RETRIEVAL_TOKEN)
    with pytest.raises(ConfigError, match=RETRIEVAL_TOKEN):
        serving.__enter__()

    monkeypatch.setenv(RETRIEVAL_TOKEN, "token-of-this-test")
    elsewhere = serve_index(
        index_dir,
        chunks_path,
        retrieval_config,
        host="192.0.2.1",
        token_variable=RETRIEVAL_TOKEN,
    )
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        elsewhere.__enter__()
