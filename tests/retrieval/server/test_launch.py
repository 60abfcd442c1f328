import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.search_server.config import RetrievalConfig
from deepsearch_rl.search_server.launch import serve_index

SERVE_UNTIL_KILLED = """
import sys
from pathlib import Path
from deepsearch_rl.search_server.launch import RetrievalConfig, serve_index
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


def test_a_server_that_cannot_start_tells_why(
    chunks_path: Path, retrieval_config: RetrievalConfig, tmp_path: Path
) -> None:
    serving = serve_index(tmp_path, chunks_path, retrieval_config)
    with pytest.raises(EndpointError, match=STARTED_WITHOUT_AN_INDEX) as raised:
        serving.__enter__()
    assert "Traceback" not in str(raised.value)
