"""Which captured rollouts the trainer can train on, with the tokens of a real tokenizer and our server's parser."""

from pathlib import Path

import art
import pytest
from openai.types.chat.chat_completion import Choice

from deepsearch_rl.agent.protocols import FunctionCalling
from deepsearch_rl.chat.chat_format import ChatFormat, assistant_message, load_chat_format
from deepsearch_rl.chat.chat_messages import chat_messages
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.core.records import Message, Trajectory
from deepsearch_rl.train.art.captures import (
    NO_TURN,
    NOT_AS_SAMPLED,
    UNREADABLE,
    captured_row,
    sampled_choices,
)
from tests.train.art.captured import captured_choice, recorded

CALL = '<tool_call>\n{"name": "retrieve", "arguments": {"query": "Silent Harbor"}}\n</tool_call>'
ANSWER = "<answer> Mary Moss</answer>"
PROTOCOL = FunctionCalling("Search.", history_reasoning=True)


@pytest.fixture
def chat_format(policy_folder: Path) -> ChatFormat:
    return load_chat_format(policy_folder)


def choice_of(text: str, tokens: list[int]) -> Choice:
    """Return a turn as our server reports it."""
    return captured_choice(assistant_message(text), tokens)


def tokens_of(text: str, chat_format: ChatFormat) -> list[int]:
    return chat_format.tokenizer(f"{text}<|im_end|>", add_special_tokens=False)["input_ids"]


def rollout(choices: list[Choice]) -> tuple[art.Trajectory, Trajectory]:
    """Return what ART captures of the turns, and what the agent records of them."""
    messages = PROTOCOL.opening("Who?")
    captured = art.Trajectory(messages_and_choices=list(chat_messages(messages)))  # type: ignore[arg-type]
    for choice in choices:
        captured.messages_and_choices.append(choice)
        turn = PROTOCOL.turn(
            Completion.model_validate({"choices": [choice.model_dump()]}), messages
        )
        messages.append(turn)
        for call in turn.tool_calls:
            result = Message(role="tool", content="[1] About it.", tool_call_id=call.id)
            messages.append(result)
            captured.messages_and_choices.append(chat_messages([result])[0])  # type: ignore[arg-type]
    return captured, recorded(messages)


def reason(texts: list[str], chat_format: ChatFormat) -> str:
    """Return why a rollout of turns, each with the tokenizer's own tokens, is left out."""
    return captured_row(
        *rollout([choice_of(text, tokens_of(text, chat_format)) for text in texts]),
        chat_format,
        True,
    ).left_out


@pytest.mark.parametrize(
    "turns",
    [
        [ANSWER],
        [CALL, ANSWER],
        [f"I will search.\n{CALL}", CALL, ANSWER],
        [f"I will search.\n\n{CALL}\n{CALL}", f"Again.\n{CALL}", ANSWER],
        [CALL, CALL],  # ended at a limit
    ],
)
def test_turns_that_come_back_as_they_were_sampled_are_trained_on(
    turns: list[str], chat_format: ChatFormat
) -> None:
    assert reason(turns, chat_format) == ""


@pytest.mark.parametrize(
    "turn",
    [
        f"I will search.{CALL}",  # the template writes a newline here
        f"\n{CALL}",
        f"{CALL}\nand more",  # the parser drops it
        CALL.replace('": ', '":'),  # another spacing of the JSON
        CALL.replace("\n", " "),
        f"{CALL} {CALL}",
    ],
)
def test_a_turn_that_comes_back_in_other_tokens_leaves_its_rollout_out(
    turn: str, chat_format: ChatFormat
) -> None:
    assert reason([turn, ANSWER], chat_format) == NOT_AS_SAMPLED
    assert reason([CALL, turn, ANSWER], chat_format) == NOT_AS_SAMPLED
    assert reason([CALL, turn], chat_format) == ""  # no later prompt holds it


def test_tokens_that_the_tokenizer_would_not_choose_leave_a_rollout_out(
    chat_format: ChatFormat,
) -> None:
    letters = [token for letter in CALL for token in tokens_of(letter, chat_format)[:-1]]
    spelt = choice_of(CALL, [*letters, tokens_of("", chat_format)[-1]])
    answer = choice_of(ANSWER, tokens_of(ANSWER, chat_format))
    assert captured_row(*rollout([spelt, answer]), chat_format, True).left_out == NOT_AS_SAMPLED


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {"content": None},
        {"content": []},
        {"content": [{"token": "Mary", "logprob": -1.0, "bytes": None, "top_logprobs": []}]},
    ],
)
def test_a_reply_without_the_ids_of_its_tokens_costs_its_rollout(
    logprobs: object, chat_format: ChatFormat
) -> None:
    first = choice_of(CALL, tokens_of(CALL, chat_format))
    last = Choice.model_validate(choice_of(ANSWER, [1]).model_dump() | {"logprobs": logprobs})
    assert captured_row(*rollout([first, last]), chat_format, True).left_out == UNREADABLE


def test_a_reply_that_was_not_captured_costs_its_rollout(chat_format: ChatFormat) -> None:
    captured, trajectory = rollout(
        [choice_of(text, tokens_of(text, chat_format)) for text in (CALL, ANSWER)]
    )
    # ART takes no reply with a log-probability of null
    captured.messages_and_choices.pop()
    assert captured_row(captured, trajectory, chat_format, True).left_out == UNREADABLE


def test_a_rollout_without_a_turn_is_named(chat_format: ChatFormat) -> None:
    assert captured_row(*rollout([]), chat_format, True).left_out == NO_TURN


def test_a_generation_that_failed_and_was_asked_again_is_no_turn(chat_format: ChatFormat) -> None:
    whole = choice_of(ANSWER, tokens_of(ANSWER, chat_format))
    empty = Choice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant"}}
    )
    filtered = whole.model_copy(update={"finish_reason": "content_filter"})
    captured, trajectory = rollout([whole])
    again = [*captured.messages_and_choices[:-1], filtered]
    captured.messages_and_choices[-1:] = [empty]
    for items in (again, [*captured.messages_and_choices[:-1], whole]):
        captured.additional_histories.append(art.trajectories.History(messages_and_choices=items))
    assert sampled_choices(captured) == [whole]
    assert captured_row(captured, trajectory, chat_format, True).left_out == ""
