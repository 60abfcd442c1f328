"""Fixtures of an engine and a chat server over an untrained policy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from deepsearch_rl.conversation.chat_format import load_chat_format
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.endpoints.endpoint import Endpoint
from deepsearch_rl.serving.chat_server import chat_app, serve_in_thread
from deepsearch_rl.serving.engine import Engine
from tests.policies import CONTEXT_TOKENS


@pytest.fixture
def engine(policy_folder: Path) -> Iterator[Engine]:
    served = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32).eval()
    engine = Engine(served, slots=16, context_tokens=CONTEXT_TOKENS)
    yield engine
    engine.close()


@pytest.fixture
def endpoint(engine: Engine, policy_folder: Path) -> Iterator[Endpoint]:
    with serve_in_thread(
        chat_app(engine, load_chat_format(policy_folder), lambda: "policy")
    ) as port:
        yield Endpoint(f"http://{LOOPBACK}:{port}/v1", "policy")
