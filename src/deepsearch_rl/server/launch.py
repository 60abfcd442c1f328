"""The retrieval server process: ``deepsearch retrieve serve``, and what the graph's stages start while they need it.

    python -m deepsearch_rl.server.launch SOCKET     (started by start_index)

It stops on SIGTERM or SIGINT: running requests are answered, new connections are refused.
"""

import contextlib
import errno
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from deepsearch_rl.core.errors import ConfigError, DeepsearchError
from deepsearch_rl.core.processes import LOOPBACK, starting_server
from deepsearch_rl.core.redaction import read_key
from deepsearch_rl.server.config import RetrievalConfig, ServerConfig
from deepsearch_rl.server.requests import Guard, is_loopback

_LOG = logging.getLogger(__name__)

# How long running requests may take once the server must stop
SHUTDOWN_TIMEOUT_S = 10

# Connections that wait to be accepted
BACKLOG = 2048

# With Python's 5 ms, every answer from the cache waits so long for the search thread
SWITCH_INTERVAL_S = 0.0005
MAX_OPEN_FILES = 65_536

# More than the rollouts of a large training step, each of which holds a connection
MAX_CONNECTIONS = 4096

# How long an idle connection is kept: a trainer pauses between rollouts for longer than most
# servers wait
KEEP_ALIVE_S = 75


@contextlib.contextmanager
def serve_index(
    index_dir: Path,
    chunks_path: Path,
    config: RetrievalConfig,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    token_variable: str | None = None,
) -> Iterator[str]:
    """Serve an index from its own process and yield the base URL (MCP is at URL + "/mcp").

    Arguments and errors are those of :func:`start_index` and of the function that it yields.
    """
    starting = start_index(
        index_dir, chunks_path, config, host=host, port=port, token_variable=token_variable
    )
    with starting as wait_for_index:
        yield wait_for_index()


@contextlib.contextmanager
def start_index(
    index_dir: Path,
    chunks_path: Path,
    config: RetrievalConfig,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    token_variable: str | None = None,
) -> Iterator[Callable[[], str]]:
    """Start the server of an index; yield a function that waits until it answers and returns the base URL.

    It is on a free loopback port where no address is given. Clients have to send the token that the
    environment variable ``token_variable`` holds. Raise ConfigError for an address that cannot be
    had or a token that is not set; the function raises EndpointError where the server does not come
    up in time. The server also stops when this process is killed.
    """
    if token_variable is not None:
        read_key(token_variable, "the retrieval server")
    server = ServerConfig(
        retrieval=config,
        index=index_dir,
        chunks=chunks_path,
        host=host,
        port=port,
        public=not is_loopback(host),
        token_variable=token_variable,
    )
    # The port is bound here and inherited, so that no other program can take it in between.
    with open_listener(server) as listener:
        url = _address(listener)
        command = [
            sys.executable,
            "-m",
            "deepsearch_rl.server.launch",
            str(listener.fileno()),
        ]
        name = "the retrieval server"
        settings = server.model_dump_json()
        starting = starting_server(
            name, command, url, "/healthz", settings=settings, listener=listener
        )

        with starting as process:

            def wait_for_index() -> str:
                process.wait_until_healthy(config.startup_timeout_s)
                return url

            yield wait_for_index


def listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket, on a free port for 0; raise ConfigError where host or port cannot be had."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        advice = "; stop the program there, or choose another port (0 takes a free one)"
        is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}{advice if is_port else ''}."
        ) from error

    # asyncio sets it only on sockets whose protocol number is given; without it every answer waits
    # 40 ms for the client's delayed acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def open_listener(config: ServerConfig) -> socket.socket:
    """Return a server's listening socket.

    Raises ConfigError as :func:`listen`, and for an address that other machines reach without
    ``public``, or without a token where ``no_token`` does not say so.
    """
    if not config.public and not is_loopback(config.host):
        raise ConfigError(
            f"{config.host} can be reached from other machines; add --public if that is meant, and --token-variable to "
            f"ask clients for a token."
        )

    if config.public and config.token_variable is None and not config.no_token:
        raise ConfigError(
            "--public lets every machine that reaches this address search; name the environment variable of a token "
            "that clients must send (--token-variable SEARCH_TOKEN), or add --no-token if everybody may."
        )

    return listen(config.host, config.port)


def serve(config: ServerConfig, listener: socket.socket) -> None:
    """Serve an index or an online search on a socket until a signal comes; raise as read_key and open_engine."""
    # A second to load, and the process that starts a server needs neither
    import uvicorn  # noqa: PLC0415

    from deepsearch_rl.server.service import make_app, open_engine  # noqa: PLC0415

    token = None
    if config.token_variable is not None:
        token = read_key(config.token_variable, "this server").encode()

    engine = open_engine(config)
    app = make_app(engine, config.retrieval, Guard(token, loopback=not config.public))

    # The collector would stop all answers to look through what the libraries have loaded
    gc.collect()
    gc.freeze()

    _raise_open_files()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            # The application logs its own failures; broken requests are not logged
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        )
    )

    # uvicorn raises the signal again once it has stopped. With these handlers the process then ends
    # with status 0; before, while the index is opened, a signal ends it at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)

    # The MCP library logs the contents of a request that it refuses
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    _LOG.info("%s", _describe(config, listener))

    server.run(sockets=[listener])
    _LOG.info("stopped serving %s", config.retrieval.online or config.index)


def _raise_open_files() -> None:
    # A trainer's rollouts hold a connection each, and 1,024 open files is the usual limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MAX_OPEN_FILES)), hard))


def _describe(config: ServerConfig, listener: socket.socket) -> str:
    address = _address(listener)
    settings = config.retrieval
    auth = "without a token" if config.token_variable is None else "with a token"
    retriever = "online search" if settings.online else settings.retriever
    source = settings.online or config.index
    return f"serving {source} by {retriever} at {address} (MCP at /mcp), {auth}"


def log_to_stderr() -> None:
    """Show warnings of everything and the server's own lines."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("deepsearch_rl.server").setLevel(logging.INFO)


def main() -> None:
    """Serve what the :class:`ServerConfig` on standard input says, on the inherited socket whose number is given."""
    log_to_stderr()
    try:
        config = ServerConfig.model_validate_json(sys.stdin.buffer.read())
        with socket.socket(fileno=int(sys.argv[1])) as listener:
            serve(config, listener)
    except DeepsearchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
