"""The retrieval server process, ``python -m deepsearch_rl.retrieval.server.process --index DIR --chunks FILE ...``.

It answers once the index is open and warm, listens on loopback unless told otherwise, and stops cleanly on SIGTERM,
SIGINT, or (with ``--stop-with-stdin``) when the process that holds the other end of its standard input is gone.
"""

import argparse
import errno
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

import uvicorn

from deepsearch_rl.errors import ConfigError, DeepsearchError
from deepsearch_rl.retrieval.searcher import RETRIEVERS, open_index
from deepsearch_rl.retrieval.server.batching import SearchQueue
from deepsearch_rl.retrieval.server.service import RetrievalService, make_app, read_pages

_LOG = logging.getLogger(__name__)
SHUTDOWN_TIMEOUT_S = 3


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one.

    Raises:
        ConfigError: the port is in use, or the host is not an address of this machine.
    """
    try:
        listener = socket.create_server((host, port), backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use; stop the program that holds it, or choose another port "
                f"(0 takes a free one)."
            ) from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error}.") from error
    # Accepted connections inherit this. asyncio sets it only on sockets whose protocol number is given, which it is not
    # here; without it every answer waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(options: argparse.Namespace) -> None:
    """Open the index and serve it until a signal comes."""
    inherited: int | None = options.socket_fd
    with listen(options.host, options.port) if inherited is None else socket.socket(fileno=inherited) as listener:
        searcher = open_index(options.index, options.chunks, options.retriever)
        searcher.search(["warm up"], options.top_k)
        pages = read_pages(options.pages) if options.pages else None
        service = RetrievalService(SearchQueue(searcher, options.max_pending), options.top_k, pages)
        config = uvicorn.Config(
            make_app(service, options.host), log_level="warning", timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S
        )
        host, port = listener.getsockname()[:2]
        _LOG.info("serving %s by %s at http://%s:%d (MCP at /mcp)", options.index, options.retriever, host, port)
        uvicorn.Server(config).run(sockets=[listener])


def _stop_with_stdin() -> None:
    """Ask this process to stop as soon as its standard input ends, which it does when the parent dies in any way."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="stdin-watch", daemon=True).start()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deepsearch_rl.retrieval.server", description=__doc__)
    parser.add_argument("--index", type=Path, required=True, help="index folder of a corpus")
    parser.add_argument("--chunks", type=Path, required=True, help="the chunk file that it was built from")
    parser.add_argument("--retriever", choices=RETRIEVERS, required=True)
    parser.add_argument("--top-k", type=int, required=True, help="passages per query where a request does not say")
    parser.add_argument("--max-pending", type=int, default=4096, help="queries that may wait; more are answered 503")
    parser.add_argument("--pages", type=Path, help="JSON Lines of {url, contents, ...} for /access")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--socket-fd", type=int, help="serve on this inherited listening socket instead")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input ends")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Run the server; an error that a user can mend ends it with status 1 and one paragraph on stderr."""
    options = _parse(arguments)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    _LOG.setLevel(logging.INFO)
    if options.stop_with_stdin:
        _stop_with_stdin()
    try:
        serve(options)
    except DeepsearchError as error:
        if options.debug:
            traceback.print_exc()
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
