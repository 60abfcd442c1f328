"""HTTP servers in this process, for tests of what a server answers rather than of how its process lives."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.server.config import RetrievalConfig, ServerConfig
from deepsearch_rl.server.launch import listen
from deepsearch_rl.server.requests import Guard
from deepsearch_rl.server.service import make_app, open_engine


def server_config(
    config: RetrievalConfig, index: Path | None = None, chunks: Path | None = None
) -> ServerConfig:
    """The settings of a server on a free loopback port."""
    return ServerConfig(
        retrieval=config,
        index=index,
        chunks=chunks,
        host=LOOPBACK,
        port=0,
        public=False,
        token_variable=None,
    )


@contextlib.contextmanager
def serve_index_here(index: Path, chunks: Path, config: RetrievalConfig) -> Iterator[str]:
    """Serve an index in a thread and yield its URL, as ``serve_index`` does from a process."""
    engine = open_engine(server_config(config, index, chunks))
    app = make_app(engine, config, Guard(token=None, loopback=True))

    with serve_app(app) as url:
        yield url


@contextlib.contextmanager
def serve_app(app: ASGIApp, port: int = 0, **options: Any) -> Iterator[str]:
    """Put an application behind a real HTTP server in a thread and yield its URL; port 0 takes a free one."""
    with listen(LOOPBACK, port) as listener:
        settings = uvicorn.Config(
            app,
            ws="none",
            log_config=None,
            log_level="critical",
            timeout_graceful_shutdown=1,
            **options,
        )
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)


@contextlib.contextmanager
def in_thread(server: HTTPServer) -> Iterator[None]:
    """Run a server of the standard library in a thread."""
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
