"""Starting the retrieval server for as long as a piece of work needs it."""

import contextlib
import http.client
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.retrieval.rerank import RerankerConfig
from deepsearch_rl.retrieval.server.config import LOOPBACK, RetrievalConfig
from deepsearch_rl.retrieval.server.process import SHUTDOWN_TIMEOUT_S, listen

LOG_TAIL_BYTES = 4096


@contextlib.contextmanager
def serve_index(index_dir: Path, chunks_path: Path, config: RetrievalConfig) -> Iterator[str]:
    """Serve an index from its own process on a free loopback port and yield the base URL (MCP is at URL + "/mcp").

    The server answers when the block begins and is stopped when it ends; it also stops when this process is killed.

    Raises:
        EndpointError: the server did not come up in time; the message holds what it wrote.
    """
    with tempfile.TemporaryFile() as log:
        # The port is bound here and inherited, so that no other program can take it in between. Once our own copy is
        # closed, a server that dies while starting resets the waiting health check instead of leaving it to time out.
        with listen(LOOPBACK, 0) as listener:
            port: int = listener.getsockname()[1]
            process = _start(listener.fileno(), index_dir, chunks_path, config, log)
        try:
            _await_health(port, process, config.startup_timeout_s, log)
            yield f"http://{LOOPBACK}:{port}"
        finally:
            _stop(process)


def _start(
    socket_fd: int, index_dir: Path, chunks_path: Path, config: RetrievalConfig, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "deepsearch_rl.retrieval.server.process", "--stop-with-stdin"]
    command += ["--socket-fd", str(socket_fd)]
    command += ["--online", str(config.online)] if config.online else ["--index", str(index_dir)]
    command += [] if config.online else ["--chunks", str(chunks_path)]
    command += ["--retriever", config.retriever, "--top-k", str(config.top_k), "--window-ms", str(config.window_ms)]
    command += ["--max-batch", str(config.max_batch), "--max-pending", str(config.max_pending)]
    command += ["--cache-entries", str(config.cache_entries)]
    command += ["--pages", str(config.pages)] if config.pages else []
    command += _reranker_options(config.reranker) if config.reranker else []
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[socket_fd])


def _reranker_options(config: RerankerConfig) -> list[str]:
    options = ["--reranker", str(config.model), "--rerank-depth", str(config.depth)]
    options += ["--rerank-tokens", str(config.max_tokens), "--rerank-batch-tokens", str(config.batch_tokens)]
    return [*options, "--rerank-device", config.device, "--rerank-dtype", config.dtype]


def _await_health(port: int, process: subprocess.Popen[bytes], timeout_s: float, log: IO[bytes]) -> None:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_s)
    try:
        connection.request("GET", "/healthz")
        if connection.getresponse().status != http.HTTPStatus.OK:
            raise EndpointError(f"the retrieval server on port {port} is not healthy. {_written(log)}")
    except TimeoutError as error:
        raise EndpointError(f"the retrieval server was not ready after {timeout_s:g} s. {_written(log)}") from error
    except OSError as error:
        with contextlib.suppress(subprocess.TimeoutExpired):  # what it wrote is complete once it has ended
            process.wait(timeout=SHUTDOWN_TIMEOUT_S)
        raise EndpointError(f"the retrieval server did not start. {_written(log)}") from error
    finally:
        connection.close()


def _written(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - LOG_TAIL_BYTES))
    text = log.read().decode(errors="replace").strip()
    return f"It wrote: {text}" if text else "It wrote nothing."


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=2 * SHUTDOWN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
