"""Fixtures of an engine and a chat server over an untrained policy."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from deepsearch_rl.chat.chat_format import load_chat_format
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.serve.chat_server import chat_app, serve_in_thread
from deepsearch_rl.serve.engine import Engine
from deepsearch_rl.serve.launch import ServingConfig
from tests.policies import CONTEXT_TOKENS

# Section serving of a server for the policies of tests
CPU_SERVING = {
    "backend": "cpu",
    "cpu": {
        "slots": 8,
        "context_tokens": CONTEXT_TOKENS,
        "servers": 1,
        "dtype": "float32",
        "threads": 1,
        "start_timeout_s": 120,
    },
}


@contextmanager
def running_engine(folder: Path) -> Iterator[Engine]:
    """An engine over a whole model."""
    served = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    engine = Engine(served, slots=16, context_tokens=CONTEXT_TOKENS)
    yield engine
    engine.close()


@contextmanager
def serve_here(engine: Engine, folder: Path) -> Iterator[Endpoint]:
    """A chat server of this process, with a folder's tokenizer and template."""
    with serve_in_thread(chat_app(engine, load_chat_format(folder), lambda: "policy")) as port:
        yield Endpoint(f"http://{LOOPBACK}:{port}/v1", "policy")


@contextmanager
def serve_model_here(folder: Path, config: ServingConfig) -> Iterator[Endpoint]:
    """Stands for :func:`serve_model` of a whole model on a CPU, in this process."""
    assert config.backend == "cpu"
    with running_engine(folder) as engine, serve_here(engine, folder) as endpoint:
        yield endpoint


@pytest.fixture
def engine(policy_folder: Path) -> Iterator[Engine]:
    with running_engine(policy_folder) as engine:
        yield engine


@pytest.fixture
def endpoint(engine: Engine, policy_folder: Path) -> Iterator[Endpoint]:
    with serve_here(engine, policy_folder) as endpoint:
        yield endpoint


@contextmanager
def serve_models_here(folder: Path, config: ServingConfig) -> Iterator[list[Endpoint]]:
    """Stands for :func:`serve_models`: as many as ``serving.cpu.servers``, in this process."""
    assert config.cpu is not None
    with ExitStack() as servers:
        yield [
            servers.enter_context(serve_model_here(folder, config))
            for _ in range(config.cpu.servers)
        ]
