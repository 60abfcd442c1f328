"""The record of one rollout while it runs: every message, every executed search and every token counted.

The transcript is the conversation: what is sent to the model next is rebuilt from it, so that a stored trajectory
holds exactly the messages that the model saw.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agents.exceptions import AgentsException

from deepsearch_rl.agent.chat_messages import split_thought
from deepsearch_rl.agent.policy import Reply
from deepsearch_rl.agent.prompt_count import PromptCount
from deepsearch_rl.answers import extract_answer, has_answer_tags
from deepsearch_rl.records import (
    Message,
    ProtocolName,
    Question,
    Retrieval,
    StopReason,
    TokenUsage,
    ToolCall,
    Trajectory,
)

Observer = Callable[[Message], None]
"""Is shown every message of a rollout once the model wrote it or was shown it."""


class RolloutStopped(AgentsException):
    """Ends a rollout from inside the Agents SDK, which lets its own exceptions through unchanged."""

    def __init__(self, reason: StopReason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """What a trajectory says of how it came about."""

    model: str
    prompt: str
    temperature: float
    protocol: ProtocolName = "function_calling"


@dataclass(frozen=True, slots=True)
class Observation:
    """What a call brought: the text that the model reads, the search if there was one, and whether it is a notice."""

    text: str
    retrieval: Retrieval | None = None
    notice: bool = False


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
    told_to_answer: StopReason | None = None
    """The limit that a model which searches on, once told to answer, is stopped for."""
    _waiting: dict[str, Observation] = field(default_factory=dict)
    _first_retrieval: int = 0
    _shown: int = 0

    def add_turn(self, reply: Reply) -> None:
        """Record what the model answered to the conversation so far."""
        if reply.usage is not None:
            self.usage.append(reply.usage)
        self.messages.append(reply.turn)
        self.show()

    def add_observation(self, text: str) -> None:
        """Record a text that the model reads next although no call asked for it."""
        self._first_retrieval = len(self.retrievals)
        self.messages.append(Message(role="tool", content=text))

    def keep(self, call: ToolCall, observation: Observation) -> None:
        """Hold what a call brought until all calls of the turn are done: they run at once and end in any order."""
        self._waiting[call.id] = observation

    def settle(self) -> None:
        """Record what the calls of the last turn brought, in their order."""
        self._first_retrieval = len(self.retrievals)
        for call in self.messages[-1].tool_calls:
            done = self._waiting.pop(call.id)
            self.messages.append(Message(role="tool", content=done.text, tool_call_id=call.id))
            if done.retrieval is not None:
                self.retrievals.append(done.retrieval)
            if done.notice:
                self.told_to_answer = StopReason.SEARCH_BUDGET

    def amend_observations(self, texts: Sequence[str], *, passages_dropped: bool) -> None:
        """Replace the texts of the last messages; dropped passages are not recorded as shown."""
        for place, text in zip(range(len(self.messages) - len(texts), len(self.messages)), texts, strict=True):
            self.messages[place] = self.messages[place].model_copy(update={"content": text})
        if passages_dropped:
            recent = self.retrievals[self._first_retrieval :]
            self.retrievals[self._first_retrieval :] = [
                retrieval.model_copy(update={"chunk_ids": ()}) for retrieval in recent
            ]

    @property
    def observations(self) -> list[str]:
        """The texts that the model has not answered to yet, as the tool wrote them."""
        unanswered = itertools.takewhile(lambda message: message.role == "tool", reversed(self.messages))
        return [message.content for message in unanswered][::-1]

    def show(self) -> None:
        """Let the observer see the messages that it has not seen yet."""
        if self.observer is not None:
            for message in self.messages[self._shown :]:
                self.observer(message)
        self._shown = len(self.messages)

    @property
    def rounds(self) -> int:
        """Turns that the model has written."""
        return sum(message.role == "assistant" for message in self.messages)

    @property
    def has_answer_tags(self) -> bool:
        """Whether the last message holds an opening answer tag and a closing one after it, outside its reasoning."""
        return has_answer_tags(split_thought(self.messages[-1]).text)

    @property
    def answer(self) -> str:
        """The answer in the last message, empty where it holds none."""
        return extract_answer(split_thought(self.messages[-1]).text)

    def finish(self, sample: int, key: RolloutKey, reason: StopReason, error: str | None) -> Trajectory:
        """The record of the rollout once it has ended."""
        question = self.question
        self.show()
        self._record_unread_searches()
        return Trajectory(
            id=f"{question.id}#{sample}",
            question_id=question.id,
            sample=sample,
            question=question.question,
            golden_answers=question.golden_answers,
            question_type=question.metadata.question_type,
            model=key.model,
            prompt=key.prompt,
            protocol=key.protocol,
            temperature=key.temperature,
            messages=self.numbered_messages(),
            retrievals=tuple(self.retrievals),
            answer=self.answer if reason is StopReason.ANSWERED else "",
            stop_reason=reason,
            error=error and whole(error),
            usage=tuple(self.usage),
        )

    def _record_unread_searches(self) -> None:
        """Searches that were carried out, but whose passages no turn came to read."""
        for call in self.messages[-1].tool_calls:
            done = self._waiting.pop(call.id, None)
            if done is not None and done.retrieval is not None:
                self.retrievals.append(done.retrieval.model_copy(update={"chunk_ids": ()}))

    def numbered_messages(self) -> tuple[Message, ...]:
        """The messages with call ids counted from ``call_1``, since servers draw them at random."""
        calls = [call.id for message in self.messages for call in message.tool_calls]
        names = {id_: f"call_{number}" for number, id_ in enumerate(calls, 1)}
        return tuple(_renamed(message, names) for message in self.messages)


def whole(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON can escape and no file can hold, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _renamed(message: Message, names: dict[str, str]) -> Message:
    calls = tuple(call.model_copy(update={"id": names[call.id]}) for call in message.tool_calls)
    answered = message.tool_call_id and names[message.tool_call_id]
    return message.model_copy(update={"tool_calls": calls, "tool_call_id": answered})
