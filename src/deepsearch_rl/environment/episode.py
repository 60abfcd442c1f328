"""One question in the environment: the model's turns go in, what it reads next and the reward come out."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepsearch_rl.agent.protocols import Reply
from deepsearch_rl.agent.search_tool import SearchTool
from deepsearch_rl.agent.steps import RolloutSteps
from deepsearch_rl.agent.transcript import RolloutKey, RolloutStopped
from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.records import SERVER_FAILURES, Message, StopReason, Trajectory
from deepsearch_rl.train.rewards import PolicyText, reward_parts
from deepsearch_rl.train.rl.tokens import TokenRecord, TokenRow

STOPS = tuple(reason for reason in StopReason if reason not in SERVER_FAILURES)


@dataclass(frozen=True, slots=True)
class RewardSetting:
    """The weights of rewards by name, and how the policy's text is read for them."""

    weights: Mapping[str, float]
    policy: PolicyText


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended: its record, and the reward with its summands by name."""

    trajectory: Trajectory
    reward: float
    parts: dict[str, float]

    @property
    def stop_reason(self) -> StopReason:
        """Why it ended."""
        return self.trajectory.stop_reason

    @property
    def is_server_failure(self) -> bool:
        """Whether a search failed, whatever the model wrote: such an episode is not trained on."""
        return self.stop_reason in SERVER_FAILURES

    def figures(self) -> dict[str, float]:
        """Return F1, exact match, searches, the reward's parts and the stop reason, for a trainer's log."""
        scores = score_rollout(self.trajectory)
        figures: dict[str, float] = {}
        for name, part in self.parts.items():
            figures[f"reward_{name}"] = part
        figures |= {"f1": scores.f1, "em": scores.em, "searches": float(self.trajectory.tool_calls)}
        # All of them each time: veRL averages a figure over the rollouts that have it
        for reason in STOPS:
            figures[f"stop_{reason}"] = float(reason == self.stop_reason)

        return figures


@dataclass(frozen=True, slots=True)
class Step:
    """What a turn led to: the messages that the model reads next, or the outcome."""

    observations: tuple[Message, ...] = ()
    outcome: Outcome | None = None

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.outcome is not None


class Episode:
    """A running rollout of one question; :meth:`SearchEnvironment.open` makes it.

    Before each turn :attr:`messages` and :attr:`tools` are the conversation, :attr:`prompt_ids` its
    tokens, and :attr:`max_tokens` what the turn may have.
    """

    def __init__(
        self,
        steps: RolloutSteps,
        tool: SearchTool,
        tokens: TokenRecord,
        rewards: RewardSetting,
        key: RolloutKey,
        sample: int,
    ) -> None:
        self._steps = steps
        self._tool = tool
        self._tokens = tokens
        self._rewards = rewards
        self._key = key
        self._sample = sample
        self.max_tokens = 0
        self.outcome: Outcome | None = None

        try:
            self._begin_turn()
        except RolloutStopped as stop:
            self._end(stop.reason, stop.detail)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation until now, as it is recorded."""
        return tuple(self._steps.transcript.messages)

    @property
    def request(self) -> dict[str, Any]:
        """The protocol's arguments of a chat completion: messages, and tools or stop strings."""
        return self._steps.protocol.request(self._steps.transcript.messages)

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens that the model continues."""
        return list(self._tokens.rows[-1].ids)

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        """The recorded sequences; one, unless the conversation drops what the model thought."""
        return tuple(self._tokens.rows)

    @property
    def row(self) -> TokenRow:
        """The only sequence; raises ConfigError where the episode has several."""
        if len(self._tokens.rows) != 1:
            raise ConfigError(
                f"the episode has {len(self._tokens.rows)} sequences of tokens, because its "
                "prompts do not repeat what the model wrote before, and this trainer takes one: "
                "set agent.history_reasoning: true, or use a chat template that keeps earlier "
                "turns as they are."
            )

        return self._tokens.rows[0]

    async def step(
        self,
        written: str | Sequence[int],
        *,
        logprobs: Sequence[float] | None = None,
        truncated: bool | None = None,
    ) -> Step:
        """Take the model's turn, as text or as token ids with the end token, and carry it out.

        Tokens beyond :attr:`max_tokens`, after the turn's end or after its stop string do not
        count. ``truncated``: the sampler's limit ended the turn; None reads it from the ids.
        ``logprobs`` has one number for each token id.

        Raises ValueError after the end of the episode, and where the log-probabilities are not
        those of the tokens.
        """
        if self.outcome is not None:
            raise ValueError(f"the episode is over ({self.outcome.stop_reason}); open another one")
        if logprobs is not None and (isinstance(written, str) or len(logprobs) != len(written)):
            raise ValueError("log-probabilities need the token ids of the turn, one for each")

        # The first new message is the model's own turn, which is no observation
        read_until = len(self._steps.transcript.messages) + 1
        try:
            await self._carry_out(written, logprobs, truncated)
        except RolloutStopped as stop:
            self._end(stop.reason, stop.detail)

        observations = self._steps.transcript.messages[read_until:]
        return Step(() if self.outcome else tuple(observations), self.outcome)

    def abandon(self, reason: StopReason, detail: str) -> Outcome:
        """End the episode from outside: the trainer's own limit, or a failure of its sampler."""
        if self.outcome is None:
            self._end(reason, detail)
        assert self.outcome is not None
        return self.outcome

    async def _carry_out(
        self, written: str | Sequence[int], logprobs: Sequence[float] | None, truncated: bool | None
    ) -> None:
        transcript = self._steps.transcript
        protocol = self._steps.protocol
        turn_tokens = self._tokens.read(written, transcript.messages, self.max_tokens, truncated)
        # Before the turn is judged: one that was cut off has tokens, too
        self._tokens.end_turn(turn_tokens.ids, logprobs)

        completion = turn_tokens.completion
        turn = protocol.turn(completion, transcript.messages)
        was_cut = completion.truncated(self.max_tokens) and not protocol.complete(turn)

        if self._steps.end_turn(Reply(turn, completion.usage, was_cut)):
            if not turn.tool_calls:
                self._end(self._steps.ending(), None)
                return

            await self._search(turn)
            transcript.settle()

        self._begin_turn()

    async def _search(self, turn: Message) -> None:
        """Carry out the calls of a turn at once, as the agent does; the first failure ends the others."""
        calls: list[asyncio.Task[str]] = []
        for call in turn.tool_calls:
            search = self._tool.carry_out(call, self._steps.transcript)
            calls.append(asyncio.create_task(search))

        try:
            await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()
            # Until all have ended: one that writes later would write into a transcript that is closed
            await asyncio.gather(*calls, return_exceptions=True)

    def _begin_turn(self) -> None:
        """Make room for the next turn and record its prompt; raise RolloutStopped where it does not fit.

        The agent learns from its server that a prompt is too long; here it is counted.
        """
        context_tokens = self._steps.config.context_tokens
        messages = self._steps.transcript.messages
        max_tokens = self._steps.begin_turn()
        prompt = self._tokens.prompt(messages)

        if len(prompt) + max_tokens > context_tokens:
            # As the agent does where its server refuses: the last passages go, and less is asked
            # for
            fewer = self._steps.make_more_room(max_tokens)
            if fewer is not None:
                max_tokens = fewer
                prompt = self._tokens.prompt(messages)

        if len(prompt) + max_tokens > context_tokens:
            detail = f"{len(prompt)} prompt tokens leave no room to answer in {context_tokens}"
            raise RolloutStopped(StopReason.TOKEN_BUDGET, detail)

        self._tokens.begin_turn(prompt)
        self.max_tokens = max_tokens

    def _end(self, reason: StopReason, detail: str | None) -> None:
        transcript = self._steps.transcript
        trajectory = transcript.finish(self._sample, self._key, reason, detail)
        parts = reward_parts(
            self._rewards.weights, trajectory, transcript.question, self._rewards.policy
        )
        self.outcome = Outcome(trajectory, sum(parts.values()), parts)
