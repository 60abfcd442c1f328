"""What writes the turns of a rollout: a model behind an endpoint, or a script."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deepsearch_rl.records import Message, TokenUsage


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn; ``usage`` is None where tokens are not counted, ``cut`` says that the token limit ended the turn."""

    turn: Message
    usage: TokenUsage | None = None
    cut: bool = False


class Policy(Protocol):
    """Writes one rollout's turns; made anew for every rollout."""

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """The next turn of a conversation, of at most ``max_tokens`` tokens."""
        ...
