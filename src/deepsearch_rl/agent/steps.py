"""The rules of a rollout, turn by turn, whoever asks the model.

:class:`RolloutSteps` says how many tokens the next turn may have, which notices the model reads
before it, and whether a turn that the model wrote is carried out, corrected or the end. It asks no
model and knows no loop: the agent's own loop (:mod:`deepsearch_rl.agent.rollout`) and the
environment that trainers step (:mod:`deepsearch_rl.environment`) both go through it, so that a
limit means the same in both.

Before each turn the prompt's tokens are estimated. If a whole turn of ``max_tokens`` does not fit
the context, the model is told to answer now and gets the room that is left; if not even
``answer_tokens`` fit, the last passages are dropped first. Another search after that ends the
rollout, and so does one after the notice that no searches are left. With ``out_of_context: fail``
the rollout ends where a whole turn does not fit, as with a server that refuses such a prompt.
"""

from dataclasses import dataclass

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.protocols import AgentProtocol, Reply
from deepsearch_rl.agent.search_tool import parse_search
from deepsearch_rl.agent.transcript import PromptCount, RolloutStopped, Transcript
from deepsearch_rl.chat.chat_messages import spoken_text
from deepsearch_rl.core.answers import has_answer_tags
from deepsearch_rl.core.records import StopReason

# What the model reads after the passages or instead of them when its context is nearly full
NO_ROOM_LEFT = "No room left. Answer now."


@dataclass(slots=True)
class RolloutSteps:
    """Takes one rollout from turn to turn; its state is the transcript."""

    protocol: AgentProtocol
    config: AgentConfig
    transcript: Transcript
    _characters: int = 0
    _max_tokens: int = 0

    def begin_turn(self) -> int:
        """Return the tokens that the next turn may have, once the transcript holds what the model reads before it.

        Raises RolloutStopped where no room is left to answer in.
        """
        transcript = self.transcript
        self._max_tokens = self._make_room()
        transcript.show()
        self._characters = self.protocol.characters(transcript.messages)
        transcript.generation.begin(self._max_tokens)
        return self._max_tokens

    def end_turn(self, reply: Reply) -> bool:
        """Record a turn; return whether it is carried out. Otherwise the model reads a correction and writes again.

        Raises RolloutStopped where the turn ends the rollout without an answer.
        """
        transcript = self.transcript
        transcript.generation.end(reply.usage.completion_tokens if reply.usage else 0)

        if reply.usage is not None:
            transcript.prompt_count = PromptCount(
                reply.usage.prompt_tokens, self._characters, counted=True
            )
            transcript.usage.append(reply.usage)

        transcript.messages.append(reply.turn)
        transcript.show()
        # After it is recorded: a trajectory shows the turn that ended it
        self._check(reply)

        correction = self.protocol.correction(reply.turn)
        if correction is None:
            return True
        self._require_another_turn()
        transcript.add_observation(correction)
        return False

    def make_more_room(self, max_tokens: int) -> int | None:
        """Return the tokens of a second attempt, without the last passages, after a prompt turned out too long.

        None where there is nothing left to leave out.
        """
        transcript = self.transcript
        answer_tokens = self.config.answer_tokens
        if self.config.out_of_context == "fail":
            return None
        if transcript.unanswered:
            self._tell_to_answer(drop_passages=True)
        elif max_tokens <= answer_tokens:
            return None

        # The turn that comes answers this prompt, and not the one that was refused
        self._max_tokens = min(max_tokens, answer_tokens)
        self._characters = self.protocol.characters(transcript.messages)
        transcript.generation.begin(self._max_tokens)
        return self._max_tokens

    def ending(self) -> StopReason:
        """Return how a rollout ended whose last turn was carried out and asks for no search."""
        has_answer = has_answer_tags(spoken_text(self.transcript.messages[-1]))
        return StopReason.ANSWERED if has_answer else StopReason.NO_ANSWER_TAG

    def _make_room(self) -> int:
        """Return the tokens that the next turn may have."""
        config = self.config
        has_passages = bool(self.transcript.unanswered)
        if has_passages and self._room() < config.max_tokens:
            if config.out_of_context == "fail":
                raise self._no_room(f"less than agent.max_tokens = {config.max_tokens} of")
            self._tell_to_answer(drop_passages=False)
        if has_passages and self._room() < config.answer_tokens:
            self._tell_to_answer(drop_passages=True)
        room = self._room()

        if room < config.answer_tokens and self.transcript.prompt_count.counted:
            raise self._no_room("no room to answer in")

        # Where this is a guess, the server decides whether the prompt fits
        return max(config.answer_tokens, min(room, config.max_tokens))

    def _no_room(self, left: str) -> RolloutStopped:
        tokens = self.config.context_tokens
        detail = f"about {tokens - self._room()} prompt tokens leave {left} {tokens}"
        return RolloutStopped(StopReason.TOKEN_BUDGET, detail)

    def _tell_to_answer(self, *, drop_passages: bool) -> None:
        """Write the request for an answer after the last observation, or in place of all of the last turn."""
        messages = self.transcript.messages
        unanswered = self.transcript.unanswered

        # One notice is enough where passages stay; otherwise each result of the turn gives way to
        # it
        for place in unanswered if drop_passages else unanswered[-1:]:
            text = self.protocol.notice(
                NO_ROOM_LEFT, "" if drop_passages else messages[place].content
            )
            messages[place] = messages[place].model_copy(update={"content": text})

        if drop_passages:
            self.transcript.forget_passages()
        self.transcript.told_to_answer = StopReason.TOKEN_BUDGET

    def _room(self) -> int:
        count = self.transcript.prompt_count
        # The server's count is exact; what was added since then is estimated by its characters
        characters = self.protocol.characters(self.transcript.messages)
        return self.config.context_tokens - count.tokens - count.of(characters - count.characters)

    def _check(self, reply: Reply) -> None:
        """End the rollout at a turn that is truncated, cannot be carried out, or searches after a notice."""
        if reply.truncated:
            raise RolloutStopped(StopReason.TOKEN_BUDGET, f"cut after {self._max_tokens} tokens")
        for call in reply.turn.tool_calls:
            parse_search(call)
        if reply.turn.tool_calls:
            reason = self.transcript.told_to_answer
            if reason is not None:
                raise RolloutStopped(reason, "searched on when told to answer")
            # Before the search: its passages would be read by nobody
            self._require_another_turn()

    def _require_another_turn(self) -> None:
        """End the rollout if no turn is left to read what comes next."""
        turns = sum(message.role == "assistant" for message in self.transcript.messages)
        if turns >= self.config.max_turns:
            raise RolloutStopped(
                StopReason.TURN_BUDGET, f"no answer after {self.config.max_turns} turns"
            )
