"""What the conformance suite needs in every trainer: a policy's tokenizer, and a search that all of them ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deepsearch_rl.chat.chat_format import ChatFormat, load_chat_format
from tests.environment.scripted import retrieval
from tests.policies import model_folder, policy_folder

__all__ = ["model_folder", "policy_folder"]


@pytest.fixture(scope="module")
def chat_format(policy_folder: Path) -> ChatFormat:
    return load_chat_format(policy_folder)


@pytest.fixture(scope="module")
def retrieval_url() -> Iterator[str]:
    with retrieval() as url:
        yield url
