"""The record of one rollout while it runs: every message, every executed search and every token counted.

The transcript is the conversation: what is sent to the model next is rebuilt from it, so that a stored trajectory
holds exactly the messages that the model saw.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agents.exceptions import AgentsException

from deepsearch_rl.agent.chat_messages import split_thought
from deepsearch_rl.agent.policy import Reply
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
_UNSEEN_CHARACTERS = 600
"""About what a prompt holds beyond its messages: the tool's schema and the template's words around it."""


_TOKENS_AROUND_MESSAGE = 8
"""What a template writes around a message, at most."""


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

    messages: list[Message]
    observer: Observer | None = None
    history_reasoning: bool = False
    retrievals: list[Retrieval] = field(default_factory=list)
    searches: int = 0
    usage: list[TokenUsage] = field(default_factory=list)
    told_to_answer: StopReason | None = None
    """The limit that a model which searches on, once told to answer, is stopped for."""
    _waiting: dict[str, list[Observation]] = field(default_factory=dict)
    _first_retrieval: int = 0
    _tokens_per_character: float = 0.0
    _kept_share: float = 1.0
    _shown: int = 0

    def add_turn(self, reply: Reply) -> None:
        """Record what the model answered to the conversation so far."""
        if reply.usage is not None:
            self.usage.append(reply.usage)
            self._tokens_per_character = reply.usage.prompt_tokens / self._characters()
            self._kept_share = 1.0 if self.history_reasoning else _share_outside_reasoning(reply.turn)
        self.messages.append(reply.turn)
        self.show()

    def add_observation(self, text: str) -> None:
        """Record a text that the model reads next although no call asked for it."""
        self.messages.append(Message(role="tool", content=text))

    def keep(self, call: ToolCall, observation: Observation) -> None:
        """Hold what a call brought until all calls of the turn are done: they run at once and end in any order."""
        self._waiting.setdefault(call.id, []).append(observation)

    def settle(self) -> None:
        """Record what the calls of the last turn brought, in their order."""
        self._first_retrieval = len(self.retrievals)
        for call in self.messages[-1].tool_calls:
            done = self._waiting[call.id].pop(0)
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

    def expected_tokens(self, text: str) -> int:
        """Tokens of a text by the last prompt's tokens per character; 0 where the endpoint counts nothing."""
        return math.ceil(len(text) * self._tokens_per_character)

    def expected_prompt_tokens(self) -> int:
        """Tokens of the next prompt: those of the last call as far as they are sent again, and what came since.

        0 before the first call and where the endpoint counts nothing.
        """
        if not self._tokens_per_character:
            return 0
        last = self.usage[-1]
        since = sum(_TOKENS_AROUND_MESSAGE + self.expected_tokens(text) for text in self.observations)
        return last.prompt_tokens + math.ceil(last.completion_tokens * self._kept_share) + since

    def _characters(self) -> int:
        written = sum(len(message.content) for message in self.messages)
        called = sum(len(call.arguments) + len(call.name) for message in self.messages for call in message.tool_calls)
        return _UNSEEN_CHARACTERS + written + called

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

    def finish(
        self, question: Question, sample: int, key: RolloutKey, reason: StopReason, error: str | None
    ) -> Trajectory:
        """The record of the rollout once it has ended."""
        self.show()
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

    def numbered_messages(self) -> tuple[Message, ...]:
        """The messages with call ids counted from ``call_1``, since servers draw them at random."""
        names: dict[str, list[str]] = {}
        numbers = itertools.count(1)
        numbered: list[Message] = []
        for message in self.messages:
            if message.tool_calls:  # a later turn may use an id again, and one turn an id twice
                names = {call.id: [] for call in message.tool_calls}
            calls = tuple(call.model_copy(update={"id": f"call_{next(numbers)}"}) for call in message.tool_calls)
            for call, renamed in zip(message.tool_calls, calls, strict=True):
                names[call.id].append(renamed.id)
            answered = message.tool_call_id and names[message.tool_call_id].pop(0)
            numbered.append(message.model_copy(update={"tool_calls": calls, "tool_call_id": answered}))
        return tuple(numbered)


def whole(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON can escape and no file can hold, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _share_outside_reasoning(turn: Message) -> float:
    """Of a turn's characters those that later prompts repeat."""
    called = sum(len(call.arguments) + len(call.name) for call in turn.tool_calls) + 1
    kept = called + len(split_thought(turn).text)
    return kept / (called + len(turn.content) + len(turn.reasoning or ""))
