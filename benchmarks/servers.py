"""Servers in processes of their own, with what the kernel knows about them: CPU time and memory."""

import asyncio
import itertools
import json
import multiprocessing
import os
import re
import socket
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httptools
import psutil
import uvloop

from benchmarks.measure import status_kb
from deepsearch_rl import processes
from deepsearch_rl.processes import LOOPBACK, free_port
from deepsearch_rl.retrieval.server.launch import listen

STARTUP_TIMEOUT_S = 180
MODEL, ANSWER = "scripted", "Vienna"
"""Of :func:`scripted_endpoint`."""
_SAMPLE = re.compile(r"^(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_TOOL_RESULT = b"tool_call_id"
"""Stands in every message with a tool's result, and nowhere else in a request of OpenAI's client."""


def spare_core() -> int | None:
    """Return the last core, which the servers run on; None where there is only one."""
    cores = os.sched_getaffinity(0)
    return max(cores) if len(cores) > 1 else None


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server on a loopback port."""

    port: int
    pid: int

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return LOOPBACK, self.port

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end."""
        return f"http://{LOOPBACK}:{self.port}"

    def cpu_s(self) -> float:
        """Return user and system time of all its threads since it started, in seconds."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def anonymous_bytes(self) -> int:
        """Return the anonymous memory in RAM: heaps and stacks, without mapped files."""
        return status_kb("RssAnon", self.pid) * 1024

    def metrics(self) -> Counter[str]:
        """Return the samples of ``/metrics`` by name, summed over labels; empty where there is no such route."""
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError:
            return Counter()
        totals: Counter[Any] = Counter()
        for name, value in _SAMPLE.findall(text):
            totals[name] += float(value)
        return totals


@contextmanager
def running_server(
    index_dir: Path, chunks_path: Path, options: Sequence[str], core: int | None
) -> Iterator[ServerProcess]:
    """Start the retrieval server, wait until it answers, and stop it when the block ends.

    Args:
        index_dir: a finished index.
        chunks_path: its chunk file.
        options: further options of the server's command line.
        core: the one CPU that all its threads run on; None lets them run anywhere.

    Raises:
        EndpointError: it did not come up; the message holds what it wrote.
    """
    port = free_port()
    serve = ["-c", "from deepsearch_rl.cli import main; main()", "retrieve", "serve", "--port", str(port)]
    index = ["--index", str(index_dir), "--chunks", str(chunks_path)]
    # One thread for the numeric libraries: the server's core is one, and the other belongs to the generator.
    command = ["env", "OMP_NUM_THREADS=1", sys.executable, *serve, *index, *options]
    pinned = command if core is None else ["taskset", "-c", str(core), *command]
    url = f"http://{LOOPBACK}:{port}"
    with processes.running_server("the retrieval server", pinned, url, "/healthz", STARTUP_TIMEOUT_S) as server:
        yield ServerProcess(port, psutil.Process(server.process.pid).children()[0].pid)


@contextmanager
def forked_server(serve: Callable[[socket.socket], None], core: int | None = None) -> Iterator[ServerProcess]:
    """Run ``serve`` on a listening socket in a forked process until the block ends."""

    def serve_on_core() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        serve(listener)

    with listen(LOOPBACK, 0) as listener:
        process = multiprocessing.get_context("fork").Process(target=serve_on_core, daemon=True)
        process.start()
        assert process.pid is not None
        server = ServerProcess(listener.getsockname()[1], process.pid)
    try:
        yield server
    finally:
        process.kill()
        process.join()


def trivial_server() -> AbstractContextManager[ServerProcess]:
    """Run a server that only answers."""
    answer = _response({"result": []})
    return forked_server(lambda listener: _serve_bytes(listener, lambda _: answer))


def scripted_endpoint(queries: Sequence[str], core: int | None) -> AbstractContextManager[ServerProcess]:
    """Run a Chat Completions endpoint without a model: one search per conversation, then an answer, both at once.

    Each new conversation searches for the next of ``queries``. It costs the endpoint some tens of microseconds to see
    whether a conversation already holds a tool's result, so that the client is what is measured.
    """
    searches, answer = itertools.cycle([_completion(query) for query in queries]), _completion(None)
    return forked_server(
        lambda listener: _serve_bytes(listener, lambda body: answer if _TOOL_RESULT in body else next(searches)), core
    )


def _completion(query: str | None) -> bytes:
    message: dict[str, object] = {"role": "assistant", "content": f"<answer>{ANSWER}</answer>" if not query else None}
    if query:
        function = {"name": "retrieve", "arguments": json.dumps({"query": query})}
        message["tool_calls"] = [{"id": "call_of_the_script", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if query else "stop"}
    usage = {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220}
    completion = {"id": "c", "object": "chat.completion", "created": 0, "model": MODEL}
    return _response({**completion, "choices": [choice], "usage": usage})


def _response(body: object) -> bytes:
    payload = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


def _serve_bytes(listener: socket.socket, respond: Callable[[bytes], bytes]) -> None:
    """Answer every request with the bytes that ``respond`` returns for its body: the least that a server can do."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(respond), sock=listener)
        await server.serve_forever()

    uvloop.run(serve())


class _Connection(asyncio.Protocol):
    """One keep-alive connection of :func:`_serve_bytes`."""

    def __init__(self, respond: Callable[[bytes], bytes]) -> None:
        self._respond, self._parser, self._body = respond, httptools.HttpRequestParser(self), b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._transport.write(self._respond(self._body))
        self._body = b""
