"""Where a turn's reasoning stands, and what of it a request carries."""

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from deepsearch_rl.chat.chat_messages import (
    Thought,
    chat_messages,
    split_thought,
    spoken_text,
)
from deepsearch_rl.core.records import Message, ToolCall

# What makes a part of a text a thought, as its readers write it: tags in any case, channels, and
# what is left of channels without special tokens
BEGINS_OR_ENDS_A_THOUGHT = re.compile(
    r"</?think|<\|channel\|>|\A\s*analysis|assistant(analysis|commentary|final)",
    re.IGNORECASE | re.DOTALL,
)
CALL = ToolCall(id="call_1", name="retrieve", arguments='{"query": "mayor"}')


def turn(content: str, reasoning: str | None = None) -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning)


@pytest.mark.parametrize(
    ("message", "reasoning", "text"),
    [
        (turn("So it is.", "Look.\nAgain."), "Look.\nAgain.", "So it is."),
        # vLLM's parsers keep the newlines around
        (turn("\n\nSo it is.", "\nLook.\n"), "Look.", "So it is."),
        (
            turn("So it is.", " \n Look. \n"),
            " Look. ",
            "So it is.",
        ),  # a blank line would share a token with the prompt's newline; other blanks were sampled
        (turn("<think>\nLook.\n</think>\n\nSo it is."), "Look.", "So it is."),  # no parser
        (turn(" <think>Look.</think>So it is."), "Look.", "So it is."),
        # No parser, and the prompt opened the block
        (turn("Look.\n</think>\n\nSo it is."), "Look.", "So it is."),
        # A server that returns it twice
        (turn("<think>Look.</think>So it is.", "Look."), "Look.", "So it is."),
        (turn("<think>\n\n</think>\n\nSo it is.", "Look."), "Look.", "So it is."),
        (turn("<think>\n\n</think>\n\nSo it is."), None, "So it is."),
        (turn("<think>Other.</think>So.", "Look."), "Look.", "<think>Other.</think>So."),
        (turn("So it is."), None, "So it is."),
        (turn("\nSo it is.", "\n"), None, "\nSo it is."),
        (turn("So <think>late</think> it is."), None, "So <think>late</think> it is."),
        (Message(role="tool", content="a</think>b", tool_call_id="call_1"), None, "a</think>b"),
        (Message(role="user", content="<think>a</think>b"), None, "<think>a</think>b"),
    ],
)
def test_a_thought_is_found_wherever_the_server_put_it(
    message: Message, reasoning: str | None, text: str
) -> None:
    assert split_thought(message) == Thought(reasoning, text)


def test_a_thought_that_was_never_closed_is_all_of_a_turn() -> None:
    message = turn("<think>Perhaps <answer>Mary Moss</answer>, or")
    assert split_thought(message) == Thought(
        "Perhaps <answer>Mary Moss</answer>, or", "", closed=False
    )


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (turn("So it is."), "So it is."),
        (turn("<think>Look.</think>\n\nSo it is."), "So it is."),
        (turn("Look.</think>\n\nSo it is."), "So it is."),
        (turn("So it is.", "Look."), "So it is."),
        (turn("<think>never closed"), ""),
        (turn("So <think>late</think> it is."), "So  it is."),
        (turn("So <think>late and never closed"), "So "),
        (turn("<think>a</think>So <think>again"), "So "),
        (turn("<think>a<think>b</think>c</think>So."), "So."),
        (turn("<think>a</think>b</think>So."), "So."),
        (turn("So <think>never closed", "Look."), "So "),
    ],
)
def test_what_a_turn_says_stands_outside_of_all_its_thoughts(message: Message, text: str) -> None:
    assert spoken_text(message) == text


def test_reasoning_is_sent_back_by_both_its_names_and_not_in_the_text() -> None:
    [sent] = chat_messages([turn("<think>\nLook.\n</think>\n\nSo.")], with_reasoning=True)
    assert sent == {
        "role": "assistant",
        "content": "So.",
        "reasoning": "Look.",
        "reasoning_content": "Look.",
    }


def test_without_reasoning_no_trace_of_it_is_sent() -> None:
    messages = [turn("So.", "Look."), turn("<think>Look.</think>So."), turn("Look.</think>So.")]
    assert chat_messages(messages) == [{"role": "assistant", "content": "So."}] * 3


def test_a_turn_that_only_thinks_before_its_call_is_sent_with_an_empty_text() -> None:
    [sent] = chat_messages(
        [Message(role="assistant", content="\n\n", reasoning="Look.", tool_calls=(CALL,))]
    )
    assert sent["content"] == ""
    assert sent["tool_calls"] == [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "retrieve", "arguments": '{"query": "mayor"}'},
        }
    ]


@given(st.text(), st.booleans())
@example("2 < 3 </thin <|channel", True)
def test_messages_without_reasoning_are_sent_to_the_letter(text: str, with_reasoning: bool) -> None:
    assume(not BEGINS_OR_ENDS_A_THOUGHT.search(text))
    [sent] = chat_messages([turn(text)], with_reasoning=with_reasoning)
    assert sent == {"role": "assistant", "content": text}


@pytest.mark.parametrize("text", ["<think>", "<THINK>", "<Think >\nLook."])
def test_a_text_that_only_opens_a_thought_is_sent_as_an_empty_one(text: str) -> None:
    assert BEGINS_OR_ENDS_A_THOUGHT.search(text)
    assert chat_messages([turn(text)]) == [{"role": "assistant", "content": ""}]


@given(st.text(alphabet="ab \n<>/"), st.text(alphabet="ab \n"))
def test_a_thought_apart_and_a_thought_in_the_text_are_the_same(thought: str, text: str) -> None:
    if not thought.strip():
        return
    apart, inside = turn(text, thought), turn(f"<think>\n{thought}\n</think>\n\n{text}")
    assert split_thought(apart) == split_thought(inside)
