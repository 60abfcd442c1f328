"""An engine and a chat server over an untrained policy."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.model_servers import endpoint, engine
from tests.policies import policy_folder

__all__ = ["endpoint", "engine", "policy_folder"]


@pytest.fixture(scope="session")
def model(policy_folder: Path) -> PreTrainedModel:
    """The policy as transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32).eval()
