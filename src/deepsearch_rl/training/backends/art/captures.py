"""Whether a captured rollout can be trained on: every turn with its tokens, each in the prompt of the turns after it.

The trainer puts the sampled tokens of all turns into one conversation. That is what the policy
wrote only if a reply holds its tokens, and if the prompt of the next turn begins with them. A
server's parser takes a turn apart, the agent sends it back, and the chat template writes it anew:
another spacing of a call, text after it, or tokens that the tokenizer would not choose for their
text come back as other tokens. Such a rollout is left out, and counted by name.
"""

import re
from array import array
from collections.abc import Sequence
from functools import lru_cache

import art
from openai.types.chat.chat_completion import Choice

from deepsearch_rl.conversation.chat_format import ChatFormat, ConversationError
from deepsearch_rl.conversation.chat_messages import RETRIEVE_TOOL, chat_messages
from deepsearch_rl.core.records import Message, Trajectory

# The first prompt did not fit: there is nothing to train on
NO_TURN = "no_turn"
UNREADABLE = "unreadable_reply"
NOT_AS_SAMPLED = "not_as_sampled"
_TOKEN = re.compile(r"token_id:(\d+)")
_ENDINGS = frozenset({"stop", "length", "tool_calls", "function_call"})


def sampled_choices(captured: art.Trajectory) -> list[Choice]:
    """Return the turns of a captured rollout in their order, without generations that failed and were asked again."""
    choices: list[Choice] = []
    for history in (captured, *captured.additional_histories):
        for item in history.messages_and_choices:
            if isinstance(item, Choice) and _is_turn(item):
                choices.append(item)

    return choices


def _is_turn(choice: Choice) -> bool:
    message = choice.message
    has_tokens = choice.logprobs is not None and bool(choice.logprobs.content)
    return choice.finish_reason in _ENDINGS and bool(
        has_tokens or message.content or message.tool_calls
    )


def why_left_out(
    captured: art.Trajectory, trajectory: Trajectory, chat_format: ChatFormat, with_reasoning: bool
) -> str:
    """Return the name of what keeps a rollout from being trained on; empty where nothing does.

    ``with_reasoning``: the agent sends the reasoning of a turn back with it.
    """
    positions: list[int] = []
    for place, message in enumerate(trajectory.messages):
        if message.role == "assistant":
            positions.append(place)

    if not positions:
        return NO_TURN
    choices = sampled_choices(captured)
    turns = [tokens for tokens in map(sampled_tokens, choices) if tokens]
    if not len(turns) == len(choices) == len(positions):
        return UNREADABLE
    # The last turn was never sent back
    before_last = trajectory.messages[: positions[-1]]
    return (
        "" if comes_back(turns[:-1], before_last, chat_format, with_reasoning) else NOT_AS_SAMPLED
    )


def sampled_tokens(choice: Choice) -> list[int]:
    """Return the ids of a turn's tokens, which servers report as ``token_id:N``; empty if one is missing."""
    reported = (choice.logprobs and choice.logprobs.content) or []
    return token_ids([entry.token for entry in reported])


def token_ids(reported: Sequence[str]) -> list[int]:
    """Return the ids of tokens that a server reports as ``token_id:N``; empty if one is not."""
    ids: list[int] = []
    for token in reported:
        match = _TOKEN.fullmatch(token)
        if match is None:
            return []
        ids.append(int(match[1]))

    return ids


def comes_back(
    turns: Sequence[Sequence[int]],
    messages: Sequence[Message],
    chat_format: ChatFormat,
    with_reasoning: bool,
) -> bool:
    """Return whether every prompt of a conversation begins with the prompt before it and the turn sampled after that.

    ``turns`` are the tokens of the assistant's turns in ``messages``, in their order.
    """
    if not turns:
        return True

    def prompt_ids(end: int) -> list[int]:
        chat = chat_messages(messages[:end], with_reasoning=with_reasoning)
        return chat_format.prompt_ids(chat, [RETRIEVE_TOOL])

    try:
        prompt = _bytes(prompt_ids(len(messages)))
        opening = _bytes(_opening_ids(chat_format))
        openings = _places(prompt, opening)

        # Every turn has one, and the prompt ends in one: nothing else looks like a turn
        if len(openings) == len(turns) + 1:
            pairs = zip(openings, turns, strict=False)
            return all(prompt.startswith(opening + _bytes(turn), place) for place, turn in pairs)

        positions = [place for place, message in enumerate(messages) if message.role == "assistant"]
        for turn, position in zip(turns, positions, strict=True):
            if not prompt.startswith(_bytes([*prompt_ids(position), *turn])):
                return False
    except ConversationError:
        return False

    return True


@lru_cache(maxsize=1)
def _opening_ids(chat_format: ChatFormat) -> list[int]:
    return chat_format.opening_ids()


_SIZE = array("q").itemsize


def _places(tokens: bytes, part: bytes) -> list[int]:
    """Return where a part begins in tokens, both as :func:`_bytes` writes them."""
    places: list[int] = []
    place = tokens.find(part)
    while place >= 0:
        if place % _SIZE == 0:
            places.append(place)
        place = tokens.find(part, place + 1)

    return places


def _bytes(tokens: Sequence[int]) -> bytes:
    """Return tokens as text of one width, in which the search for a part is fast."""
    return array("q", tokens).tobytes()
