"""Record of a running rollout: messages, searches, tokens.

Each request is built from it, so that a stored trajectory holds exactly the messages that the model
saw.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from agents.exceptions import AgentsException

from deepsearch_rl.chat.chat_messages import spoken_text
from deepsearch_rl.chat.completion import replace_lone_surrogates
from deepsearch_rl.core.answers import extract_answer
from deepsearch_rl.core.records import (
    Message,
    ProtocolName,
    Question,
    Retrieval,
    StopReason,
    TokenUsage,
    ToolCall,
    Trajectory,
)

# Called with every message of a rollout, once the model wrote it or was shown it
Observer = Callable[[Message], None]
# Until an endpoint has counted a prompt: English has about one token for four characters
GUESSED_TOKENS_PER_CHARACTER = 1 / 3


class RolloutStopped(AgentsException):
    """Ends a rollout from inside the Agents SDK, which does not wrap its own exceptions."""

    def __init__(self, reason: StopReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """How a trajectory was made."""

    model: str
    prompt: str
    temperature: float
    protocol: ProtocolName = "function_calling"


@dataclass(slots=True)
class PromptCount:
    """The endpoint's count of the last prompt, whose characters the protocol counts; a guess until ``counted``."""

    tokens: int = 0
    characters: int = 0
    counted: bool = False

    def of(self, characters: int) -> int:
        """Return the tokens of a text of so many characters."""
        per_character = GUESSED_TOKENS_PER_CHARACTER
        if self.counted:
            per_character = self.tokens / max(1, self.characters)
        # Rounded up: an estimate that is too small costs a failed call
        return math.ceil(characters * per_character)


@dataclass(slots=True)
class GenerationTime:
    """The seconds of a rollout in which its model wrote: the turns that came, and one that may still be written."""

    seconds: float = 0.0
    tokens: int = 0
    _began: float | None = None
    _max_tokens: int = 0

    def begin(self, max_tokens: int) -> None:
        """A turn of at most so many tokens is asked for now."""
        self._began = time.monotonic()
        self._max_tokens = max_tokens

    def end(self, tokens: int) -> None:
        """The turn has come, with so many tokens."""
        assert self._began is not None
        self.seconds += time.monotonic() - self._began
        self.tokens += tokens
        self._began = None

    def leave_out(self, seconds: float) -> None:
        """Of the turn that was asked for, so many seconds were a wait for the server's limits."""
        if self._began is not None:
            self._began += seconds

    @property
    def is_pending(self) -> bool:
        """Whether a turn was asked for and has not come."""
        return self._began is not None

    @property
    def total_s(self) -> float:
        """The seconds until now.

        A turn that has not come counts while it is no longer than its limit of tokens would take at
        the speed of the turns before it; after that, or where no turn came before, the server
        hangs.
        """
        if self._began is None or not self.tokens:
            return self.seconds
        pending_s = time.monotonic() - self._began
        longest_s = self._max_tokens * self.seconds / self.tokens
        return self.seconds + (pending_s if pending_s <= longest_s else 0.0)


@dataclass(slots=True)
class Transcript:
    """A running rollout."""

    question: Question
    messages: list[Message]
    observer: Observer | None = None
    retrievals: list[Retrieval] = field(default_factory=list)
    searches: int = 0
    usage: list[TokenUsage] = field(default_factory=list)
    prompt_count: PromptCount = field(default_factory=PromptCount)
    generation: GenerationTime = field(default_factory=GenerationTime)
    # Once the model was told to answer: the stop reason if it searches again
    told_to_answer: StopReason | None = None
    _waiting: dict[str, tuple[str, Retrieval | None]] = field(default_factory=dict)
    _first_retrieval: int = 0
    _observed: int = 0

    def add_observation(self, text: str) -> None:
        """Record a text that the model reads next although no call asked for it."""
        self._first_retrieval = len(self.retrievals)
        self.messages.append(Message(role="tool", content=text))

    def keep(self, call: ToolCall, text: str, retrieval: Retrieval | None) -> None:
        """Hold what the model reads next until all calls of the turn have ended; None: a notice, without a search."""
        self._waiting[call.id] = text, retrieval

    def settle(self) -> None:
        """Record the results of the last turn's calls, in the order of the calls."""
        self._first_retrieval = len(self.retrievals)
        for call in self.messages[-1].tool_calls:
            text, retrieval = self._waiting.pop(call.id)
            self.messages.append(Message(role="tool", content=text, tool_call_id=call.id))

            if retrieval is None:
                self.told_to_answer = StopReason.SEARCH_BUDGET
            else:
                self.retrievals.append(retrieval)

    @property
    def is_answered(self) -> bool:
        """Whether the model has written a turn."""
        return any(message.role == "assistant" for message in self.messages)

    @property
    def unanswered(self) -> range:
        """Positions of the tool messages that the model has not replied to yet."""
        start = len(self.messages)
        while self.messages[start - 1].role == "tool":
            start -= 1
        return range(start, len(self.messages))

    def forget_passages(self) -> None:
        """Note that the passages of the last turn's searches were not shown."""
        unread = self.retrievals[self._first_retrieval :]
        self.retrievals[self._first_retrieval :] = map(_without_chunks, unread)

    def show(self) -> None:
        """Call the observer with the messages that are new to it."""
        if self.observer is not None:
            for message in self.messages[self._observed :]:
                self.observer(message)

        self._observed = len(self.messages)

    def finish(
        self, sample: int, key: RolloutKey, reason: StopReason, error: str | None
    ) -> Trajectory:
        """Return the record of the rollout; calls are numbered from 1, because servers draw their ids at random."""
        self.show()
        # Searches that were executed, but whose passages no turn has read
        for call in self.messages[-1].tool_calls:
            _, retrieval = self._waiting.pop(call.id, ("", None))
            if retrieval is not None:
                self.retrievals.append(_without_chunks(retrieval))

        names: dict[str, str] = {}
        number = 0
        for message in self.messages:
            for call in message.tool_calls:
                number += 1
                names[call.id] = f"call_{number}"

        # A text that ends a rollout in another way is no answer, whatever tags it holds
        answer = ""
        if reason is StopReason.ANSWERED:
            answer = extract_answer(spoken_text(self.messages[-1]))

        question = self.question
        return Trajectory(
            id=f"{question.id}#{sample}",
            question_id=question.id,
            sample=sample,
            question=question.question,
            golden_answers=question.golden_answers,
            question_type=question.metadata.question_type,
            **asdict(key),
            messages=tuple(_with_call_ids(message, names) for message in self.messages),
            retrievals=tuple(self.retrievals),
            answer=answer,
            stop_reason=reason,
            error=error and replace_lone_surrogates(error),
            usage=tuple(self.usage),
        )


def _without_chunks(retrieval: Retrieval) -> Retrieval:
    return retrieval.model_copy(update={"chunk_ids": ()})


def _with_call_ids(message: Message, names: dict[str, str]) -> Message:
    """Return a message as records hold it, without the fields that only its server understands."""
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        calls.append(call.model_copy(update={"id": names[call.id], "provider_fields": ""}))
    answered_call = message.tool_call_id and names[message.tool_call_id]
    changes = {"tool_calls": tuple(calls), "tool_call_id": answered_call, "provider_fields": ""}
    return message.model_copy(update=changes)
