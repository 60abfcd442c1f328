"""A model behind the profile's own server: tool calls, turns sent back, tokens per second, true log-probabilities.

    python -m tools.preflight.serve_probe PARAMS FOLDER MERGED RESULT

FOLDER holds a model, or an adapter that is served beside its base. MERGED is the model itself, or
the adapter merged into its base: a forward pass of it in transformers, over the same tokens, is the
reference of the log-probabilities. RESULT is a JSON file.

A turn with a call is sent back with a passage, as the agent does. The server's prompt must then
have the very tokens that the model wrote: those of its own chat template, counted by the server.
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

from deepsearch_rl.agent.protocols import FunctionCalling
from deepsearch_rl.chat.chat_format import ChatFormat, load_chat_format
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL, chat_messages
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.files import read_jsonl, write_json
from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.core.records import Message, Question
from deepsearch_rl.serve.launch import ServingConfig, serve_model
from deepsearch_rl.train.merge_proof import AnswerTokens, answer_logprobs
from tools.preflight.logprobs import mean_difference

PROMPTS = 8
REQUESTS = 32
MAX_TOKENS = 40
TOKEN_PREFIX = "token_id:"


class ServedAnswer(BaseModel):
    """What the server wrote after a prompt: tokens, their log-probabilities, and whether it parsed a tool call."""

    tokens: list[int]
    logprobs: list[float]
    called: bool
    turn: Message
    """The answer as the agent keeps it."""


class Probe(BaseModel):
    """What a server did; ``parity`` is the mean difference of log-probabilities of the greedy answers."""

    answers: list[ServedAnswer]
    dtype: str
    start_s: float
    tokens_per_s: float
    parity: float
    second_turns: int
    """Turns with a call that were sent back, and whose text the tokenizer splits as the model wrote it."""
    other_turns: int
    """How many of these came back with other tokens."""
    first_other_turn: str = ""


def ask(
    endpoint: Endpoint, messages: Sequence[dict[str, Any]], temperature: float, seed: int
) -> ServedAnswer:
    """Return the server's answer to a conversation with the search tool."""
    reply = post(endpoint, messages, temperature=temperature, seed=seed, logprobs=True)
    completion = Completion.model_validate(reply)
    choice = reply["choices"][0]
    tokens = choice["logprobs"]["content"]
    return ServedAnswer(
        tokens=[int(token["token"].removeprefix(TOKEN_PREFIX)) for token in tokens],
        logprobs=[token["logprob"] for token in tokens],
        called=bool(choice["message"].get("tool_calls")),
        turn=FunctionCalling("").turn(completion, []),
    )


def post(endpoint: Endpoint, messages: Sequence[dict[str, Any]], **options: object) -> Any:
    """Return the server's reply to a conversation with the search tool."""
    body = {
        "model": endpoint.model,
        "messages": messages,
        "tools": [RETRIEVE_TOOL],
        "max_tokens": MAX_TOKENS,
    }
    body |= options
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    response = httpx.post(
        f"{endpoint.base_url}/chat/completions",
        json=body,
        headers=headers,
        timeout=120,
        trust_env=False,
    )
    return response.raise_for_status().json()


def probe(profile: Profile, folder: Path, merged: Path) -> Probe:
    """Serve a model folder and return what it did, compared with the model in ``merged``."""
    path = profile.data / "questions" / "multihoprag" / "train.jsonl"
    questions = list(read_jsonl(path, Question))[:PROMPTS]
    system = {"role": "system", "content": load_prompt(profile.values["agent"]["prompt"])}
    prompts = [[system, {"role": "user", "content": question.question}] for question in questions]
    config = profile.section("serving", ServingConfig)
    chat_format = load_chat_format(merged)
    started = time.monotonic()

    with serve_model(folder, config) as endpoint, ThreadPoolExecutor(REQUESTS) as pool:
        start_s = time.monotonic() - started
        answers = list(pool.map(lambda prompt: ask(endpoint, prompt, 0.0, 0), prompts))

        # Speed is that of many requests at once, as rollouts make them
        started = time.monotonic()
        sampled = list(
            pool.map(lambda n: ask(endpoint, prompts[n % PROMPTS], 1.0, n), range(REQUESTS))
        )
        tokens = sum(len(answer.tokens) for answer in sampled)
        tokens_per_s = tokens / (time.monotonic() - started)

        pairs = [(prompts[n % PROMPTS], answer) for n, answer in enumerate([*answers, *sampled])]
        returned = list(pool.map(lambda pair: comes_back(endpoint, chat_format, *pair), pairs))

    dtype = config.vllm.dtype if config.backend == "vllm" and config.vllm else "float32"
    second_turns = 0
    other_turns: list[str] = []
    for (_, answer), is_same in zip(pairs, returned, strict=True):
        # None: there was no call to send back
        if is_same is not None:
            second_turns += 1
        if is_same is False:
            other_turns.append(answer.turn.content)

    return Probe(
        answers=answers,
        dtype=dtype,
        start_s=start_s,
        tokens_per_s=tokens_per_s,
        parity=_parity(merged, dtype, chat_format, prompts, answers),
        second_turns=second_turns,
        other_turns=len(other_turns),
        first_other_turn=other_turns[0] if other_turns else "",
    )


def comes_back(
    endpoint: Endpoint, chat_format: ChatFormat, prompt: Sequence[Any], answer: ServedAnswer
) -> bool | None:
    """Return whether a turn with a call, sent back with a passage, has the tokens that the model wrote.

    None for a turn without a call, and for one that the tokenizer would split otherwise, which no
    server could return.
    """
    if not answer.called:
        return None
    tokens = answer.tokens
    tokenizer = chat_format.tokenizer
    if tokenizer.encode(tokenizer.decode(tokens), add_special_tokens=False) != tokens:
        return None

    turn = [answer.turn]
    for call in answer.turn.tool_calls:
        turn.append(Message(role="tool", content="Doc 1: none", tool_call_id=call.id))

    messages = [*prompt, *chat_messages(turn)]
    rendered = chat_format.prompt_ids(messages, [RETRIEVE_TOOL])
    beginning = [*chat_format.prompt_ids(prompt, [RETRIEVE_TOOL]), *tokens]
    # The server does not say its prompt's tokens, but how many they are
    usage = post(endpoint, messages, max_tokens=1)["usage"]
    is_same_length = usage["prompt_tokens"] == len(rendered)
    return rendered[: len(beginning)] == beginning and is_same_length


def _parity(
    folder: Path,
    dtype: str,
    chat_format: ChatFormat,
    prompts: Sequence[Any],
    answers: Sequence[ServedAnswer],
) -> float:
    """Return the mean difference of the server's log-probabilities from transformers'."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")

    tokens: list[AnswerTokens] = []
    server_logprobs: list[list[float]] = []
    for messages, answer in zip(prompts, answers, strict=True):
        prompt_ids = chat_format.prompt_ids(messages, [RETRIEVE_TOOL])
        tokens.append(AnswerTokens(prompt_ids, answer.tokens))
        server_logprobs.append(answer.logprobs)

    return mean_difference(answer_logprobs(model, tokens), server_logprobs)


def main() -> None:
    """Command line; an error ends it with status 1 and one paragraph."""
    params, folder, merged, result = map(Path, sys.argv[1:])
    try:
        write_json(result, probe(load_profile(params), folder, merged).model_dump(mode="json"))
    except (DeepsearchError, httpx.HTTPError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
