"""The CPU server: :mod:`deepsearch_rl.serving.chat_server` over a model folder, in a process of its own."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.records import Record
from deepsearch_rl.serving.processes import free_port, wait_until_healthy, watched_process

SERVED_NAME = "policy"


class CpuConfig(Record):
    """Section ``serving.cpu``."""

    slots: int = Field(ge=2, description="conversations whose keys and values are kept; half of them can run at once")
    context_tokens: int = Field(ge=1, description="longest prompt plus answer")
    start_timeout_s: float = Field(gt=0, description="how long the server may take to load")


@contextlib.contextmanager
def serve_cpu(folder: Path, config: CpuConfig) -> Iterator[Endpoint]:
    """Serve ``folder`` on a free loopback port until the end of the block.

    Raises:
        EndpointError: the server did not start; the message holds its last lines.
    """
    port = free_port()
    module = "deepsearch_rl.serving.chat_server"
    command = [sys.executable, "-m", module, str(folder), "--port", str(port), "--name", SERVED_NAME]
    command += ["--slots", str(config.slots), "--context-tokens", str(config.context_tokens)]
    with watched_process(command) as server:
        wait_until_healthy(server, f"http://127.0.0.1:{port}/health", config.start_timeout_s)
        yield Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model=SERVED_NAME, api_key="EMPTY")
