"""Scripted questions, and what the project's own rollout makes of them: the reference for every trainer.

The reference is the agent itself against the real model server, whose engine writes the tokens of a
script in place of a model's. It holds each prompt that the engine was given, token by token, and
the trajectory.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from mcp.server.mcpserver.exceptions import ToolError

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat.chat_format import ChatFormat
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.core.records import Question, Trajectory
from deepsearch_rl.serve.chat_server import chat_app, serve_in_thread
from deepsearch_rl.serve.engine import (
    ContextOverflowError,
    Engine,
    Generation,
    SamplingParams,
    Watch,
)
from deepsearch_rl.train.rewards import PolicyText, ThinkLength
from deepsearch_rl.train.rl.task_checks import policy_text as training_policy_text
from tests.agent.search_server import serve_search
from tests.settings import AGENT
from tests.vllm_parsers import hermes_call

ANSWER = "It is so. <answer> Mary Moss</answer>"
QUESTION = Question(id="q1", question="Who directed Silent Harbor?", golden_answers=("Mary Moss",))
NEVER_FITS = "the question does not fit"
BROKEN = "the index is broken"
END = "<|im_end|>"
REWARDS = {"f1": 2.0, "answer_format": 0.5, "short_think": 0.25}
THINK_LENGTH = ThinkLength(min_tokens=1, full_score_tokens=100, max_tokens=600)


@dataclass(frozen=True, slots=True)
class Script:
    """What the model writes, turn by turn, and the agent's settings that differ; a turn without END never ends."""

    name: str
    turns: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    tags: bool = False
    stop_reason: str = "answered"

    @property
    def config(self) -> AgentConfig:
        """The agent's settings."""
        values = AGENT.model_dump() | {
            "max_searches": 3,
            "max_turns": 6,
            "max_tokens": 64,
            "answer_tokens": 24,
        }
        values |= {"context_tokens": 512, "history_reasoning": True}
        if self.tags:
            values |= {
                "protocol": "search_tags",
                "prompt": "search_tags",
                "history_reasoning": False,
            }
            values["context_tokens"] = 2048
        return AgentConfig.model_validate(values | self.settings)

    def turn_ids(self, chat_format: ChatFormat) -> list[list[int]]:
        """Return each turn's tokens."""
        return [chat_format.tokenizer.encode(turn, add_special_tokens=False) for turn in self.turns]


def ended(*turns: str) -> tuple[str, ...]:
    """Return turns that the model ends."""
    return tuple(turn + END for turn in turns)


CALLS = (
    Script("answered at once", ended(ANSWER)),
    Script("one search", ended(hermes_call("Silent Harbor"), ANSWER)),
    Script("words before a call", ended(f"I search.\n{hermes_call('Silent Harbor')}", ANSWER)),
    Script("two calls in one turn", ended(f"{hermes_call('one')}\n{hermes_call('two')}", ANSWER)),
    Script(
        "a thought that later prompts drop",
        ended(f"<think>\nWho?\n</think>\n\n{hermes_call('one')}", ANSWER),
    ),
    Script("no answer tags", ended("Mary Moss"), stop_reason="no_answer_tag"),
    Script("an empty turn", ended(""), stop_reason="no_answer_tag"),
    Script(
        "no searches left",
        ended(hermes_call("one"), hermes_call("two"), ANSWER),
        {"max_searches": 1},
    ),
    Script(
        "searched on",
        ended(hermes_call("one"), hermes_call("two"), hermes_call("three")),
        {"max_searches": 1},
        stop_reason="search_budget",
    ),
    Script(
        "no turns left",
        ended(hermes_call("one"), hermes_call("two")),
        {"max_turns": 2},
        stop_reason="turn_budget",
    ),
    Script("cut", ("and so on " * 90,), stop_reason="token_budget"),
    Script("cut behind the answer", (ANSWER + " and so on" * 90,)),
    Script(
        "an unknown tool",
        ended('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'),
        stop_reason="tool_call_unparsable",
    ),
    Script(
        "a call that is no JSON",
        ended("<tool_call>\nretrieve(one)\n</tool_call>"),
        stop_reason="tool_call_unparsable",
    ),
    Script("a broken search", ended(hermes_call(BROKEN), ANSWER), stop_reason="tool_error"),
    Script("told to answer", ended(hermes_call("one"), ANSWER), {"context_tokens": 275}),
    Script(
        "searched on when told to answer",
        ended(hermes_call("one"), hermes_call("two")),
        {"context_tokens": 275},
        stop_reason="token_budget",
    ),
    Script("passages are dropped", ended(hermes_call("one"), ANSWER), {"context_tokens": 250}),
    Script(
        "no room left",
        ended(hermes_call("one"), ANSWER),
        {"context_tokens": 229},
        stop_reason="token_budget",
    ),
    Script(NEVER_FITS, ended(ANSWER), {"context_tokens": 100}, stop_reason="token_budget"),
)
TAGS = (
    Script("tags: answered at once", ("<answer> Mary Moss </answer>",), tags=True),
    Script(
        "tags: two searches",
        ("<search>one</search>", "<search>two</search>", "<answer>Mary</answer>"),
        tags=True,
    ),
    Script(
        "tags: written on",
        ("<search>one</search> <answer>no</answer>", "<answer>Mary</answer> and"),
        tags=True,
    ),
    Script("tags: no action", (f"I do not know.{END}", "<answer>Mary Moss</answer>"), tags=True),
    Script(
        "tags: no searches left",
        ("<search>one</search>",) * 2 + ("<answer>x</answer>",),
        {"max_searches": 1},
        True,
    ),
)
SCRIPTS = CALLS + TAGS


@dataclass(eq=False)
class ScriptedEngine:
    """Stands in for the engine behind the model server: the next turn of a script for each prompt."""

    turns: list[list[int]]
    end_id: int
    context_tokens: int
    prompts: list[list[int]] = field(default_factory=list)
    written: list[list[int]] = field(default_factory=list)

    def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, watch: Watch | None = None
    ) -> "Future[Generation]":
        if len(prompt) + sampling.max_tokens > self.context_tokens:
            raise ContextOverflowError(len(prompt), sampling.max_tokens, self.context_tokens)
        reason = "length"
        ids: list[int] = []
        for token in self.turns[len(self.written)][: sampling.max_tokens]:
            ids.append(token)
            if (watch is not None and watch(token, -1.0)) or token == self.end_id:
                reason = "stop"
                break
        self.prompts.append(list(prompt))
        self.written.append(ids)
        result: Future[Generation] = Future()
        result.set_result(Generation(tuple(ids), (-1.0,) * len(ids), reason))
        return result


@dataclass(frozen=True, slots=True)
class Reference:
    """The agent's own rollout: its record, and each model call's prompt and completion in tokens."""

    trajectory: Trajectory
    prompts: list[list[int]]
    written: list[list[int]]

    def rows(self) -> list[tuple[list[int], list[int]]]:
        """Return each sequence with its mask: a prompt that does not repeat the tokens before it begins a new one."""
        rows: list[tuple[list[int], list[int]]] = []
        for prompt, written in zip(self.prompts, self.written, strict=True):
            mask = [0] * len(prompt)
            if rows and prompt[: len(rows[-1][0])] == rows[-1][0]:
                _, earlier = rows.pop()
                mask[: len(earlier)] = earlier
            rows.append((prompt + written, mask + [1] * len(written)))
        return rows


def own_rollout(script: Script, chat_format: ChatFormat, retrieval_url: str) -> Reference:
    """Return what the agent makes of a script."""
    end_id = cast(int, chat_format.tokenizer.eos_token_id)
    engine = ScriptedEngine(script.turn_ids(chat_format), end_id, script.config.context_tokens)

    async def answer(endpoint: Endpoint) -> Trajectory:
        async with SearchAgent(
            script.config, endpoint, retrieval_url, 1.0, backoff_s=0.001
        ) as agent:
            return await agent.answer(QUESTION, 0)

    with serve_in_thread(chat_app(cast(Engine, engine), chat_format, lambda: "policy")) as port:
        trajectory = asyncio.run(answer(Endpoint(f"http://{LOOPBACK}:{port}/v1", "policy")))
    return Reference(trajectory, engine.prompts, engine.written)


def policy_text(chat_format: ChatFormat) -> PolicyText:
    """Return how rewards read the scripted policy."""
    return training_policy_text(chat_format, THINK_LENGTH)


@contextmanager
def retrieval() -> Iterator[str]:
    """Serve a search that finds one passage for everything, and fails for :data:`BROKEN`."""

    def searching(query: str) -> None:
        if query == BROKEN:
            raise ToolError(BROKEN)

    with serve_search(searching) as port:
        yield f"http://{LOOPBACK}:{port}"
