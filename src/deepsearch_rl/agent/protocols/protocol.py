"""What differs between the ways in which a model searches.

Whatever the protocol, a rollout is recorded in one form: an assistant message with the calls that were read from it,
then a tool message per call. What the model saw is the content of the messages, character for character.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from deepsearch_rl.agent.completion import Completion
from deepsearch_rl.records import Message
from deepsearch_rl.retrieval.passages import Found


class AgentProtocol(Protocol):
    """One way to search. Objects are frozen and shared by all rollouts of an agent."""

    def opening(self, question: str) -> list[Message]:
        """The messages that a conversation begins with."""
        ...

    def request(self, messages: Sequence[Message]) -> dict[str, Any]:
        """The arguments of a chat completion that depend on the protocol: ``messages``, and tools or stop strings."""
        ...

    def characters(self, messages: Sequence[Message]) -> int:
        """Length of a request, with about what a template writes around it."""
        ...

    def turn(self, completion: Completion, messages: Sequence[Message]) -> Message:
        """What the model said to a conversation as a message; no call has an id that the conversation has already."""
        ...

    def search(self, query: str) -> Message:
        """A turn that searches, as a model would write it."""
        ...

    def complete(self, turn: Message) -> bool:
        """Whether a turn that was cut by its token limit can be acted on all the same."""
        ...

    def correction(self, turn: Message) -> str | None:
        """What the model is told of a turn that is no valid action; None where the turn stands as it is.

        Raises:
            RolloutStopped: the turn ends the rollout.
        """
        ...

    def observation(self, passages: Sequence[Found]) -> str:
        """What the model reads after a search: passages, best first."""
        ...

    def followed_by(self, observation: str, notice: str) -> str:
        """An observation with a notice after it."""
        ...

    def notice(self, text: str) -> str:
        """What the model reads in place of passages."""
        ...
