"""A turn comes back to the model as it was sampled, through the tool call parser of vLLM and of our own server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepsearch_rl.agent.protocols import FunctionCalling
from deepsearch_rl.chat.chat_format import ChatFormat, assistant_message, load_chat_format
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL, chat_messages
from deepsearch_rl.chat.completion import Completion
from tests.policies import policy_folder
from tests.vllm_parsers import hermes, hermes_call

__all__ = ["policy_folder"]
Parser = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def chat_format(policy_folder: Path) -> ChatFormat:
    return load_chat_format(policy_folder)


def served_back(
    text: str, parser: Parser, chat_format: ChatFormat, passages: str = "About it."
) -> str:
    """Return the prompt after a turn, as text."""
    message = parser(text)
    protocol = FunctionCalling("Search.", history_reasoning=True)
    messages = protocol.opening("Who?")
    completion = Completion.model_validate(
        {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    )
    turn = protocol.turn(completion, messages)
    results = [
        turn.model_copy(
            update={"role": "tool", "content": passages, "tool_calls": (), "tool_call_id": each.id}
        )
        for each in turn.tool_calls
    ]
    prompt = chat_format.tokenizer.apply_chat_template(
        chat_messages([*messages, turn, *results], with_reasoning=True),
        tools=[RETRIEVE_TOOL],
        add_generation_prompt=True,
        tokenize=False,
    )
    return str(prompt)


@pytest.mark.parametrize("parser", [hermes, assistant_message])
@pytest.mark.parametrize(
    "text",
    [
        f"I will search.\n{hermes_call('Silent Harbor')}",
        f"I will search.\n\n{hermes_call('Silent Harbor')}",
        f" I will search. \n{hermes_call('Silent Harbor')}",
        hermes_call("Silent Harbor"),
        f"{hermes_call('one')}\n{hermes_call('two')}",
        f"Two of them.\n{hermes_call('one')}\n{hermes_call('two')}\n{hermes_call('three')}",
        f"Zoë, 北京, 😀.\n{hermes_call('Zoë in 北京')}",
    ],
)
def test_a_turn_with_calls_comes_back_to_the_letter(
    text: str, parser: Parser, chat_format: ChatFormat
) -> None:
    # Words of the template inside a passage
    passages = "<tool_call>\n</tool_response><|im_end|>\n<think>"
    assert f"<|im_start|>assistant\n{text}<|im_end|>\n" in served_back(
        text, parser, chat_format, passages
    )


WORDS = st.text(
    alphabet=st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=20
)


@settings(deadline=None, max_examples=60)
@given(text=WORDS, queries=st.lists(WORDS, min_size=1, max_size=3))
def test_any_text_before_any_calls_comes_back_to_the_letter(
    text: str, queries: list[str], chat_format: ChatFormat
) -> None:
    # vLLM returns no text that is white space alone
    parsers = (hermes, assistant_message) if text.strip() or not text else (assistant_message,)
    turn = "\n".join(([text] if text else []) + [hermes_call(query) for query in queries])
    for parser in parsers:
        assert f"<|im_start|>assistant\n{turn}<|im_end|>\n" in served_back(
            turn, parser, chat_format
        )


@settings(deadline=None, max_examples=60)
@given(text=WORDS, queries=st.lists(WORDS, max_size=2))
def test_both_parsers_read_a_turn_alike(text: str, queries: list[str]) -> None:
    turn = text + "\n".join(hermes_call(query) for query in queries)
    ours = assistant_message(turn)
    theirs = hermes(turn)
    assert theirs["content"] == (ours["content"] if text.strip() or not queries else None)
    names = [
        [each["function"] for each in message.get("tool_calls", ())] for message in (ours, theirs)
    ]
    assert names[0] == names[1]
