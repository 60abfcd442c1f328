"""A model behind the profile's own server: a tool call, tokens per second, and how true its log-probabilities are.

    python -m scripts.preflight.serve_probe PARAMS FOLDER MERGED RESULT

FOLDER holds a model, or an adapter that is served beside its base. MERGED is the model itself, or the adapter merged
into its base: a forward pass of it in transformers, over the same tokens, is the reference of the log-probabilities.
RESULT is a JSON file.
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import torch
from pydantic import BaseModel
from transformers import AutoModelForCausalLM

from deepsearch_rl.agent.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.errors import DeepsearchError
from deepsearch_rl.files import read_jsonl, write_json
from deepsearch_rl.profile import Profile, load_profile
from deepsearch_rl.records import Question
from deepsearch_rl.serving.chat_format import load_chat_format
from deepsearch_rl.serving.launch import ServingConfig, serve_model

PROMPTS, REQUESTS, MAX_TOKENS = 8, 32, 40
TOKEN_PREFIX = "token_id:"


class Answer(BaseModel):
    """What the server wrote after a prompt: tokens, their log-probabilities, and whether it parsed a tool call."""

    tokens: list[int]
    logprobs: list[float]
    called: bool


class Probe(BaseModel):
    """What a server did; ``parity`` is the mean difference of log-probabilities of the greedy answers."""

    answers: list[Answer]
    dtype: str
    start_s: float
    tokens_per_s: float
    parity: float


def ask(endpoint: Endpoint, messages: Sequence[dict[str, str]], temperature: float, seed: int) -> Answer:
    """Return the server's answer to a conversation with the search tool."""
    body = {"model": endpoint.model, "messages": messages, "tools": [RETRIEVE_TOOL], "max_tokens": MAX_TOKENS}
    body |= {"temperature": temperature, "seed": seed, "logprobs": True}
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    response = httpx.post(f"{endpoint.base_url}/chat/completions", json=body, headers=headers, timeout=120)
    choice = response.raise_for_status().json()["choices"][0]
    tokens = choice["logprobs"]["content"]
    return Answer(
        tokens=[int(token["token"].removeprefix(TOKEN_PREFIX)) for token in tokens],
        logprobs=[token["logprob"] for token in tokens],
        called=bool(choice["message"].get("tool_calls")),
    )


def probe(profile: Profile, folder: Path, merged: Path) -> Probe:
    """Serve a model folder and return what it did, compared with the model in ``merged``."""
    questions = list(read_jsonl(profile.data / "questions" / "multihoprag" / "train.jsonl", Question))[:PROMPTS]
    system = {"role": "system", "content": load_prompt(profile.values["agent"]["prompt"])}
    prompts = [[system, {"role": "user", "content": question.question}] for question in questions]
    config = profile.section("serving", ServingConfig)
    started = time.monotonic()
    with serve_model(folder, config) as endpoint, ThreadPoolExecutor(REQUESTS) as pool:
        start_s = time.monotonic() - started
        answers = list(pool.map(lambda prompt: ask(endpoint, prompt, 0.0, 0), prompts))
        started = time.monotonic()
        sampled = list(pool.map(lambda n: ask(endpoint, prompts[n % PROMPTS], 1.0, n), range(REQUESTS)))
        tokens = sum(len(answer.tokens) for answer in sampled)
        tokens_per_s = tokens / (time.monotonic() - started)
    dtype = config.vllm.dtype if config.backend == "vllm" and config.vllm else "float32"
    parity = _parity(merged, dtype, prompts, answers)
    return Probe(answers=answers, dtype=dtype, start_s=start_s, tokens_per_s=tokens_per_s, parity=parity)


def _parity(folder: Path, dtype: str, prompts: Sequence[Any], answers: Sequence[Answer]) -> float:
    """Return the mean difference of the server's log-probabilities from transformers'."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    chat_format, differences = load_chat_format(folder), list[float]()
    for messages, answer in zip(prompts, answers, strict=True):
        prompt = chat_format.prompt_ids(messages, [RETRIEVE_TOOL])
        tokens_S = torch.tensor([*prompt, *answer.tokens], device=model.device)
        with torch.inference_mode():
            logits_SV = model(input_ids=tokens_S[None, :-1]).logits[0].float()
        logprobs_S = logits_SV.log_softmax(dim=-1).gather(1, tokens_S[1:, None])[len(prompt) - 1 :, 0]
        differences += (logprobs_S.cpu() - torch.tensor(answer.logprobs)).abs().tolist()
    return sum(differences) / len(differences)


def main() -> None:
    """Command line; an error ends it with status 1 and one paragraph."""
    params, folder, merged, result = map(Path, sys.argv[1:])
    try:
        write_json(result, probe(load_profile(params), folder, merged).model_dump(mode="json"))
    except (DeepsearchError, httpx.HTTPError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
