"""Rows of models that think, proved against templates that treat reasoning as Qwen3's do.

``thinking``: the prompt opens the thought, as in the Thinking-2507 models; ``hybrid``: the model
opens it, as in the first Qwen3 models. Both keep the reasoning of turns after the last user
message, take it from ``reasoning_content`` or else from a block in the text, and write a block, if
only an empty one, into the last turn. ``keeping``, as in Qwen3.6: like ``thinking``, with a block
in every turn.
"""

import asyncio
import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swift.dataset import load_dataset
from transformers import Qwen3Config

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Question, Trajectory
from deepsearch_rl.toy.pretrained_model import world_tokenizer
from deepsearch_rl.train.swift_rows import row_targets, swift_row
from deepsearch_rl.train.training_set import IGNORED, TokenProof
from tests.agent.conftest import ChatServer, Searches
from tests.conversations import Turn, conversation_of

ASSISTANT_TURN = "{{- '<|im_start|>' + turn.role + '\\n' + content }}"
THINKING_TURN = """
{%- set ns.reasoning = '' %}
{%- if turn.role == 'assistant' %}
    {%- if turn.reasoning_content is string %}
        {%- set ns.reasoning = turn.reasoning_content %}
    {%- elif '</think>' in content %}
        {%- set ns.reasoning = content.split('</think>')[0].split('<think>')[-1] %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
{%- endif %}
{{- '<|im_start|>' + turn.role + '\\n' }}
{%- if turn.role == 'assistant' and loop.index0 > ns.last_question and (loop.last or ns.reasoning) %}
    {{- '<think>\\n' + ns.reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}
    {{- content }}
{%- endif %}
"""
LAST_QUESTION = """
{%- set ns = namespace(last_question=-1, reasoning='') %}
{%- for turn in turns %}{% if turn.role == 'user' %}{% set ns.last_question = loop.index0 %}{% endif %}{% endfor %}
{%- for turn in turns %}
    {%- set content ="""
FIRST_LINES = "\n{%- for turn in turns %}\n    {%- set content ="
SHOWN = " and loop.index0 > ns.last_question and (loop.last or ns.reasoning)"
PROMPT = "{{- '<|im_start|>assistant\\n' }}"


def thinking_template(plain: str, kind: str) -> str:
    """The tiny profile's ChatML template with Qwen3's treatment of reasoning."""
    turn = THINKING_TURN.replace(SHOWN, "") if kind == "keeping" else THINKING_TURN
    prompt = PROMPT if kind == "hybrid" else PROMPT.replace("\\n'", "\\n<think>\\n'")
    for old, new in ((ASSISTANT_TURN, turn), (FIRST_LINES, LAST_QUESTION), (PROMPT, prompt)):
        assert old in plain
        plain = plain.replace(old, new)
    return plain


FolderOf = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """Model folders by how their chat templates treat reasoning."""
    made: dict[str, Path] = {}
    for kind in ("plain", "hybrid", "thinking", "keeping"):
        tokenizer = world_tokenizer(load_prompt("tiny"), 400, 2048)
        tokenizer.add_tokens(["<think>", "</think>"])
        if kind != "plain":
            tokenizer.chat_template = thinking_template(str(tokenizer.chat_template), kind)
        made[kind] = tmp_path_factory.mktemp(kind)
        tokenizer.save_pretrained(made[kind])
        Qwen3Config(vocab_size=len(tokenizer), architectures=["Qwen3ForCausalLM"]).save_pretrained(
            made[kind]
        )
    return made.__getitem__


def rollout(*turns: Turn) -> Trajectory:
    return conversation_of(turns, lambda call: f"[1] T\nof {call.id}")


ANSWER = "<answer> Kaspar Granger</answer>"
SEVERAL = rollout(
    ("Which town?\n\nNorthgate.", "", ["mayor of Northgate"]),
    ("Two at once. ", "I look for both.", ["spouse of Kaspar", "town of Zoe"]),
    (" Now I know.", ANSWER, ()),
)
AS_PARSERS_LEAVE_IT = rollout(
    ("\nWhich town?\n", "\n\n", ["mayor"]), ("\nI know.\n", f"\n\n{ANSWER}", ())
)
IN_THE_TEXT = rollout(
    (None, "<think>\nWhich town?\n</think>\n\n", ["mayor"]),
    (None, f"<think>\nI know.\n</think>\n\n{ANSWER}", ()),
)
WITHOUT_OPENING_TAG = rollout(
    (None, "Which town?\n</think>\n\n", ["mayor"]), (None, f"I know.</think>{ANSWER}", ())
)
TWICE = rollout(
    ("Which town?", "<think>Which town?</think>", ["mayor"]),
    ("I know.", f"<think>I know.</think>{ANSWER}", ()),
)
ONE_TURN = rollout(("I know.", ANSWER, ()))
REASONED = [SEVERAL, AS_PARSERS_LEAVE_IT, IN_THE_TEXT, WITHOUT_OPENING_TAG, TWICE, ONE_TURN]
SAME = [AS_PARSERS_LEAVE_IT, IN_THE_TEXT, WITHOUT_OPENING_TAG, TWICE]
"""One conversation, as four kinds of servers return it."""

PAIRS = [
    ("thinking", "qwen3_thinking", "+ignore_think_prefix"),
    ("hybrid", "qwen3", ""),
    ("hybrid", "qwen3_thinking", ""),
]
"""Chat template of the model, ms-swift's template, and the loss scale after its base."""


def proof(folder: Path, template: str, flatten: bool, masked: str = "") -> TokenProof:
    return TokenProof(
        folder, "qwen3", template, "hermes", ("last_round" if flatten else "default") + masked
    )


def prove(proof: TokenProof, trajectory: Trajectory, flatten: bool) -> int:
    targets = row_targets(trajectory, flatten)
    for target in targets:
        proof.check(trajectory, swift_row(trajectory, target), target)
    return len(targets)


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize(("kind", "template", "masked"), PAIRS)
def test_rows_with_reasoning_are_what_a_thinking_model_is_served(
    folder_of: FolderOf, kind: str, template: str, masked: str, flatten: bool
) -> None:
    checked = proof(folder_of(kind), template, flatten, masked)
    rows = [prove(checked, trajectory, flatten) for trajectory in REASONED]
    assert rows == ([3, 2, 2, 2, 2, 1] if flatten else [1] * 6)


def trained_texts(checked: TokenProof, trajectory: Trajectory, flatten: bool) -> list[list[str]]:
    """For every row the runs of text that carry loss."""
    decode = checked._chat_format.tokenizer.decode
    rows = [
        swift_row(trajectory, target).model_dump() for target in row_targets(trajectory, flatten)
    ]
    return [
        [
            str(decode(list(run)))
            for trained, run in groupby(labels, key=lambda label: label != IGNORED)
            if trained
        ]
        for labels in (checked._training.encode(row)["labels"] for row in rows)
    ]


CALL = '<tool_call>\n{"name": "retrieve", "arguments": {"query": "mayor"}}\n</tool_call>'


@pytest.mark.parametrize("trajectory", SAME)
@pytest.mark.parametrize(("kind", "opening"), [("thinking", ""), ("hybrid", "<think>\n")])
def test_a_model_is_trained_to_write_what_it_would_have_generated(
    folder_of: FolderOf, kind: str, opening: str, trajectory: Trajectory
) -> None:
    first = f"{opening}Which town?\n</think>\n\n{CALL}<|im_end|>\n"
    second = f"{opening}I know.\n</think>\n\n{ANSWER}<|im_end|>\n"
    masked = "" if opening else "+ignore_think_prefix"
    flat, whole = (
        proof(folder_of(kind), "qwen3_thinking", flatten, masked) for flatten in (True, False)
    )
    assert trained_texts(flat, trajectory, True) == [[first], [second]]
    assert trained_texts(whole, trajectory, False) == [[first, second]]


def as_vllm_reads_it(message: dict[str, Any]) -> dict[str, Any]:
    """A message as vLLM hands it to the template: reasoning by its newer name alone, arguments as objects."""
    read = {name: value for name, value in message.items() if name != "reasoning_content"}
    read |= {"reasoning_content": read["reasoning"]} if "reasoning" in read else {}
    for call in read.get("tool_calls", []):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return read


async def answered(agent: SearchAgent) -> Trajectory:
    async with agent:
        return await agent.answer(
            Question(id="q", question="Who is mayor?", golden_answers=("Kaspar Granger",)), 0
        )


@pytest.mark.slow
@pytest.mark.parametrize("history_reasoning", [False, True])
def test_prompts_in_rows_are_those_of_the_requests_that_reached_the_server(
    folder_of: FolderOf,
    chat_server: ChatServer,
    searches: Searches,
    agent_config: Callable[..., AgentConfig],
    history_reasoning: bool,
) -> None:
    chat_server.says("\n\n", "mayor of Zoë's town", reasoning="\nWhich town?\n")
    chat_server.says("<think>\nTwo at once.\n</think>\n\nI look for both.", "spouse", "town")
    chat_server.says("Once more.\n</think>\n\n", "town")
    chat_server.says(ANSWER, reasoning="I know.")
    config = agent_config(history_reasoning=history_reasoning, max_searches=4)
    trajectory = asyncio.run(answered(SearchAgent(config, chat_server.endpoint, searches.url, 0.7)))
    flatten = not history_reasoning
    checked = proof(folder_of("thinking"), "qwen3_thinking", flatten, "+ignore_think_prefix")
    assert prove(checked, trajectory, flatten) == (4 if flatten else 1)

    turns = row_targets(trajectory, flatten=True)
    for turn, request in zip(turns, chat_server.requests, strict=True):
        row = swift_row(trajectory, turn if flatten else None).model_dump()
        encoded = checked._training.encode(row)
        for messages in (
            request["messages"],
            [as_vllm_reads_it(message) for message in request["messages"]],
        ):
            prompt = checked._chat_format.prompt_ids(messages, request["tools"])
            assert encoded["input_ids"][: len(prompt)] == prompt
            assert encoded["labels"][len(prompt) - 1] == IGNORED != encoded["labels"][len(prompt)]


@pytest.mark.slow
@pytest.mark.parametrize("flatten", [False, True])
def test_ms_swifts_own_loader_hands_the_proved_rows_to_its_template(
    folder_of: FolderOf, flatten: bool, tmp_path: Path
) -> None:
    checked = proof(folder_of("thinking"), "qwen3_thinking", flatten, "+ignore_think_prefix")
    rows = [
        swift_row(one, target)
        for one in (SEVERAL, IN_THE_TEXT)
        for target in row_targets(one, flatten)
    ]
    write_jsonl(tmp_path / "train.jsonl", rows)
    loaded, _ = load_dataset([str(tmp_path / "train.jsonl")], num_proc=1)
    for row, read in zip(rows, loaded, strict=True):
        ours, theirs = (checked._training.encode(dict(one)) for one in (row.model_dump(), read))
        assert (theirs["input_ids"], theirs["labels"]) == (ours["input_ids"], ours["labels"])


PLAIN = rollout((None, "", ["mayor"]), (None, ANSWER, ()))
FORGOT = rollout(("Which town?", "", ["mayor"]), (None, "", ["town"]), ("I know.", ANSWER, ()))


@pytest.mark.parametrize("flatten", [False, True])
def test_rows_without_reasoning_are_what_a_model_that_does_not_think_is_served(
    folder_of: FolderOf, flatten: bool
) -> None:
    assert prove(proof(folder_of("plain"), "qwen3_nothinking", flatten), PLAIN, flatten) == (
        2 if flatten else 1
    )


@pytest.mark.parametrize(
    ("kind", "template", "scale", "trajectory", "flatten", "differs"),
    [
        # Reasoning is not rendered
        ("plain", "qwen3_nothinking", "default", SEVERAL, False, "training tokens"),
        ("plain", "qwen3_nothinking", "last_round", SEVERAL, True, "training tokens"),
        # <think> is the prompt's
        ("thinking", "qwen3_thinking", "default", SEVERAL, False, "trained tokens"),
        # <think> is the model's
        ("hybrid", "qwen3", "default+ignore_think_prefix", SEVERAL, False, "trained tokens"),
        # History would be trained
        ("hybrid", "qwen3_thinking", "default", SEVERAL, True, "trained tokens"),
        # Earlier turns would not
        ("hybrid", "qwen3", "last_round", SEVERAL, False, "trained tokens"),
        # ms-swift adds empty thoughts to all turns
        ("hybrid", "qwen3", "default", PLAIN, False, "training tokens"),
        # The model's to the last
        ("hybrid", "qwen3_nothinking", "default", PLAIN, False, "training tokens"),
        (
            "thinking",
            "qwen3_thinking",
            "default+ignore_think_prefix",
            FORGOT,
            False,
            "tokens before a turn",
        ),
        (
            "thinking",
            "qwen3_thinking",
            "last_round+ignore_think_prefix",
            FORGOT,
            True,
            "training tokens",
        ),
        (
            "keeping",
            "qwen3_thinking",
            "last_round+ignore_think_prefix",
            SEVERAL,
            True,
            "training tokens",
        ),
    ],
)
def test_rows_that_are_not_what_is_served_are_refused(
    folder_of: FolderOf,
    kind: str,
    template: str,
    scale: str,
    trajectory: Trajectory,
    flatten: bool,
    differs: str,
) -> None:
    with pytest.raises(CheckFailedError, match=f"{differs} differ"):
        prove(TokenProof(folder_of(kind), "qwen3", template, "hermes", scale), trajectory, flatten)


PIECES = [
    "Which",
    " town?",
    " ",
    "\n",
    "  \n",
    "\t",
    "é",
    '"',
    "\\",
    "{",
    "<tool_call>",
    "<answer>",
    "<tool_response>",
]
WRITTEN = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
RETURNED: list[Callable[[str, str], tuple[str | None, str]]] = [
    lambda thought, text: (thought, text),
    lambda thought, text: (f"\n{thought}\n", f"\n\n{text}"),
    lambda thought, text: (None, f"<think>\n{thought}\n</think>\n\n{text}"),
    lambda thought, text: (None, f"{thought}</think>{text}"),
]
"""A thought and a text as servers return them: field and content."""
TURNS = st.lists(st.tuples(WRITTEN, WRITTEN, st.sampled_from(RETURNED)), min_size=1, max_size=3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "masked"), [("thinking", "+ignore_think_prefix"), ("hybrid", "")])
@given(turns=TURNS, flatten=st.booleans())
@settings(max_examples=50, deadline=None)
def test_whatever_is_thought_and_written_rows_are_what_is_served(
    folder_of: FolderOf,
    kind: str,
    masked: str,
    turns: list[tuple[str, str, Callable[..., Any]]],
    flatten: bool,
) -> None:
    returned = [as_returned(f"Thought {thought}", text) for thought, text, as_returned in turns]
    searching = [(*turn, ["mayor"]) for turn in returned[:-1]]
    prove(
        proof(folder_of(kind), "qwen3_thinking", flatten, masked),
        rollout(*searching, (*returned[-1], ())),
        flatten,
    )
