"""The tokens of a rollout, as its model read and wrote them: captured from its calls, or sampled one by one.

A captured rollout is the prompt of its last turn, which holds the turns before it, and that turn. It
is one sequence only if every reply holds its tokens and the prompt of the next turn begins with
them. A server's parser takes a turn apart, the agent sends it back, and the chat template writes it
anew: different spacing of a call, text after it, or tokens that the tokenizer would not choose for
their text come back as different tokens. Such a rollout is left out, and counted by name.

ART would render the conversation once more, with a placeholder for every turn. Templates of models
that think write other tokens around a turn without a thought, so what it trained on would not be
what the policy read.

In Search-R1's tags (:class:`TagPolicy`) the conversation is one message that grows. A chat completion
sends it as text, which the server tokenizes anew, and the tokenizer may join the end of a turn with
the observation behind it (``>`` and two newlines are one token of Qwen's). Those are not the tokens
that were sampled. So the server is given the sampled tokens with the observation's behind them, as
in Search-R1's own loop (``llm_agent/generation.py``), and continues this very sequence; the
observation's tokens carry no loss.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import art
from openai.types import Completion as TextCompletion
from openai.types.chat import ChatCompletionTokenLogprob
from openai.types.chat.chat_completion import Choice

from deepsearch_rl.agent.protocols import EndpointPolicy, Reply, RolloutPolicy
from deepsearch_rl.chat.chat_format import ChatFormat, ConversationError
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL, chat_messages
from deepsearch_rl.chat.completion import ENDED_BY_LIMIT
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.records import Message, Trajectory
from deepsearch_rl.train.rl.tokens import TokenRecord, TokenRow

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
    return choice.finish_reason in _ENDINGS and bool(
        reported_tokens(choice) or message.content or message.tool_calls
    )


def reported_tokens(choice: Choice) -> Sequence[ChatCompletionTokenLogprob]:
    """Return a turn's tokens as its server reports them; none where it does not."""
    return (choice.logprobs and choice.logprobs.content) or ()


class CapturedRow(NamedTuple):
    """The sequence that a rollout is trained on; without one, the name of what is missing."""

    row: TokenRow | None
    left_out: str = ""


def captured_row(
    captured: art.Trajectory, trajectory: Trajectory, chat_format: ChatFormat, with_reasoning: bool
) -> CapturedRow:
    """Return the sequence of a captured rollout, or the name of what keeps it from being trained on.

    ``with_reasoning``: the agent sends the reasoning of a turn back with it.
    """
    positions: list[int] = []
    for place, message in enumerate(trajectory.messages):
        if message.role == "assistant":
            positions.append(place)

    if not positions:
        return CapturedRow(None, NO_TURN)
    choices = sampled_choices(captured)
    turns = [tokens for tokens in map(sampled_tokens, choices) if tokens]
    if not len(turns) == len(choices) == len(positions):
        return CapturedRow(None, UNREADABLE)

    # The last turn was never sent back
    before_last = trajectory.messages[: positions[-1]]
    prompt = _prompt_with_turns(turns[:-1], before_last, chat_format, with_reasoning)
    if prompt is None:
        return CapturedRow(None, NOT_AS_SAMPLED)

    starts = [*prompt.starts, len(prompt.ids)]
    ids = [*prompt.ids, *turns[-1]]
    mask = [0] * len(ids)
    logprobs = [0.0] * len(ids)
    for start, choice, turn in zip(starts, choices, turns, strict=True):
        end = start + len(turn)
        mask[start:end] = [1] * len(turn)
        logprobs[start:end] = [entry.logprob for entry in reported_tokens(choice)]

    return CapturedRow(TokenRow(starts[0], ids, mask, logprobs))


def sampled_tokens(choice: Choice) -> list[int]:
    """Return the ids of a turn's tokens, which servers report as ``token_id:N``; empty if one is missing."""
    return token_ids([entry.token for entry in reported_tokens(choice)])


def token_ids(reported: Sequence[str]) -> list[int]:
    """Return the ids of tokens that a server reports as ``token_id:N``; empty if one is not."""
    ids: list[int] = []
    for token in reported:
        match = _TOKEN.fullmatch(token)
        if match is None:
            return []
        ids.append(int(match[1]))

    return ids


class _Prompt(NamedTuple):
    """A prompt and where in it the turns before it begin."""

    ids: list[int]
    starts: list[int]


def _prompt_with_turns(
    turns: Sequence[Sequence[int]],
    messages: Sequence[Message],
    chat_format: ChatFormat,
    with_reasoning: bool,
) -> _Prompt | None:
    """Return the prompt that ``messages`` are; None unless it holds every turn behind the turn's own prompt.

    ``turns`` are the tokens of the assistant's turns in ``messages``, in their order.
    """

    def prompt_ids(end: int) -> list[int]:
        chat = chat_messages(messages[:end], with_reasoning=with_reasoning)
        return chat_format.prompt_ids(chat, [RETRIEVE_TOOL])

    positions = [place for place, message in enumerate(messages) if message.role == "assistant"]
    try:
        ids = prompt_ids(len(messages))
        opening_ids = _opening_ids(chat_format)
        openings = _places(_bytes(ids), _bytes(opening_ids))

        # Every turn has one, and the prompt ends in one: nothing else looks like a turn
        if len(openings) == len(turns) + 1:
            starts = [place + len(opening_ids) for place in openings[:-1]]
        else:
            prompts = [prompt_ids(position) for position in positions]
            if any(ids[: len(prompt)] != prompt for prompt in prompts):
                return None
            starts = [len(prompt) for prompt in prompts]
    except ConversationError:
        return None

    for start, turn in zip(starts, turns, strict=True):
        if ids[start : start + len(turn)] != list(turn):
            return None

    return _Prompt(ids, starts)


@lru_cache(maxsize=1)
def _opening_ids(chat_format: ChatFormat) -> list[int]:
    return chat_format.opening_ids()


_SIZE = array("q").itemsize


def _places(tokens: bytes, part: bytes) -> list[int]:
    """Return the numbers of the tokens where a part begins, both as :func:`_bytes` writes them."""
    places: list[int] = []
    place = tokens.find(part)
    while place >= 0:
        if place % _SIZE == 0:
            places.append(place // _SIZE)
        place = tokens.find(part, place + 1)

    return places


def _bytes(tokens: Sequence[int]) -> bytes:
    """Return tokens as text of one width, in which the search for a part is fast."""
    return array("q", tokens).tobytes()


@dataclass(slots=True)
class TagPolicy(RolloutPolicy):
    """Writes the turns of one rollout as ``endpoint`` would; ``tokens`` records the sequence."""

    endpoint: EndpointPolicy
    tokens: TokenRecord

    @property
    def row(self) -> TokenRow | None:
        """The sequence of the rollout; None before the first turn."""
        return self.tokens.rows[0] if self.tokens.rows else None

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """Return the next turn; raises openai.APIError, and EndpointError for a reply without token ids."""
        prompt = self.tokens.prompt(messages)
        response = await self._complete(prompt, messages, max_tokens)
        ids, logprobs = _sampled(response)
        was_cut = response.choices[0].finish_reason in ENDED_BY_LIMIT

        # Recorded only now: of a request that failed there is nothing to train on
        self.tokens.begin_turn(prompt)
        turn_tokens = self.tokens.read(ids, messages, max_tokens, was_cut)
        self.tokens.end_turn(turn_tokens.ids, logprobs)

        protocol = self.endpoint.protocol
        turn = protocol.turn(turn_tokens.completion, messages)
        truncated = was_cut and not protocol.complete(turn)
        return Reply(turn, turn_tokens.completion.usage, truncated)

    async def _complete(
        self, prompt: Sequence[int], messages: Sequence[Message], max_tokens: int
    ) -> TextCompletion:
        endpoint = self.endpoint
        request: dict[str, Any] = {} if endpoint.seed is None else {"seed": endpoint.seed}
        return await endpoint.client.completions.create(
            model=endpoint.endpoint.model,
            prompt=list(prompt),
            max_tokens=max_tokens,
            temperature=endpoint.temperature,
            stop=endpoint.protocol.request(messages)["stop"],
            logprobs=0,
            extra_body={"include_stop_str_in_output": True, "return_tokens_as_token_ids": True},
            **request,
        )


def _sampled(response: TextCompletion) -> tuple[list[int], list[float]]:
    """Return the ids of a completion's tokens and their log-probabilities."""
    reported = response.choices[0].logprobs if response.choices else None
    tokens = reported.tokens if reported and reported.tokens else []
    logprobs = reported.token_logprobs if reported and reported.token_logprobs else []
    ids = token_ids(tokens)

    if not ids or len(ids) != len(logprobs):
        raise EndpointError(
            "the model server's completion has no token ids with log-probabilities: rl in "
            "search_tags needs a server whose /v1/completions takes return_tokens_as_token_ids and "
            "logprobs, as vLLM's does."
        )
    return ids, logprobs
