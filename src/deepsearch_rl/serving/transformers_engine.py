"""ms-swift's ``TransformersEngine`` around a model folder or a live module, set up for exact, batched serving.

Departures from the engine's defaults: no limit on the batch (the default is one request at a time), the plain
softmax as the sampling distribution (no top-k, no top-p, so that a reported log-probability is the one sampled from
at temperature 1), and the token ids of every answer.
"""

from pathlib import Path
from typing import Any, Protocol

import torch
from swift.infer_engine import InferRequest, RequestConfig, TransformersEngine
from swift.model import get_model_processor
from swift.template import get_template

from deepsearch_rl.errors import ArtifactError


class ChatRequest(Protocol):
    """The part of a Chat Completions request that the engine reads."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    temperature: float
    max_tokens: int
    logprobs: bool


def load_engine(folder: Path, template: str, max_batch_size: int, module: torch.nn.Module | None = None) -> TransformersEngine:
    """Open a model folder for generation in float32 on the CPU.

    Args:
        folder: Hugging Face folder with weights, tokenizer and chat template.
        template: ms-swift's name of the chat template, e.g. ``qwen3_nothinking``.
        max_batch_size: most requests in one batch; 0 is no limit.
        module: a live model to serve instead of the folder's weights (RL serves the policy that it trains).
    """
    if not (folder / "config.json").is_file():
        raise ArtifactError(f"{folder} holds no model (config.json is missing); run the stage that makes it first.")
    loaded, processor = get_model_processor(
        str(folder), model_type="qwen3", torch_dtype=torch.float32, device_map="cpu", load_model=module is None
    )
    chat_template = get_template(processor, template_type=template, agent_template="hermes")
    engine = TransformersEngine(module if module is not None else loaded, template=chat_template, max_batch_size=max_batch_size)
    engine.strict = True
    return engine


def infer_request(request: ChatRequest) -> InferRequest:
    """The engine's form of a conversation."""
    return InferRequest(messages=request.messages, tools=request.tools)


def request_config(request: ChatRequest) -> RequestConfig:
    """The engine's form of the sampling settings; equal settings share a batch."""
    return RequestConfig(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_k=-1,
        top_p=1.0,
        repetition_penalty=1.0,
        logprobs=request.logprobs,
        return_details=True,
    )
