"""The CPU server: ms-swift's ``TransformersEngine`` behind the OpenAI API, in a process of its own."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.records import Record
from deepsearch_rl.serving.processes import free_port, wait_until_healthy, watched_process

SERVED_NAME = "policy"


class TransformersConfig(Record):
    """The CPU server."""

    template: str = Field(description="ms-swift's name of the chat template, e.g. qwen3_nothinking")
    max_batch_size: int = Field(ge=0, description="most requests generated together; 0 is no limit")
    context_tokens: int = Field(ge=1, description="longest prompt plus answer")
    seed: int = Field(description="seed of the sampler; batches form by arrival, so it fixes the start, not the draws")
    start_timeout_s: float = Field(gt=0, description="how long the server may take to load")


@contextlib.contextmanager
def serve_transformers(folder: Path, config: TransformersConfig) -> Iterator[Endpoint]:
    """Run :mod:`deepsearch_rl.serving.chat_server` over ``folder`` in a process of its own."""
    port = free_port()
    module = "deepsearch_rl.serving.chat_server"
    command = [sys.executable, "-m", module, str(folder), "--port", str(port), "--name", SERVED_NAME]
    command += ["--config", config.model_dump_json()]
    with watched_process(command) as server:
        wait_until_healthy(server, f"http://127.0.0.1:{port}/health", config.start_timeout_s)
        yield Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model=SERVED_NAME, api_key="EMPTY")
