"""The text of an answer while its tokens are drawn: where a stop string ends it, and what of it can be sent already."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from deepsearch_rl.chat.chat_format import assistant_message, settled_content, without_begun


@dataclass(slots=True)
class AnswerText:
    """One answer's text, decoded token by token.

    Args:
        tokenizer: of the model that draws the tokens.
        stops: strings that end the answer.
        keep_stop: whether the text keeps the stop string that ended it.
        in_thought: whether the prompt opened a thought.
        may_call: whether tool calls are looked for.
    """

    tokenizer: PreTrainedTokenizerBase
    stops: Sequence[str] = ()
    keep_stop: bool = False
    in_thought: bool = False
    may_call: bool = True
    # The stop string that ended the answer
    stop_string: str | None = field(default=None, init=False)
    text: str = field(default="", init=False)
    _sent: int = field(default=0, init=False)
    _decoder: DecodeStream = field(
        default_factory=lambda: DecodeStream(skip_special_tokens=True), init=False
    )

    def add(self, token: int) -> bool:
        """Add a token; return whether a stop string ends the answer with it."""
        piece = self._decoder.step(self.tokenizer.backend_tokenizer, token)
        before = len(self.text)
        self.text += piece or ""
        return self._stop(before)

    def _stop(self, before: int) -> bool:
        """Cut the text at the first stop string that ends behind its first ``before`` characters."""
        matches: list[tuple[int, int, str]] = []
        for number, stop in enumerate(self.stops):
            place = self.text.find(stop, max(0, before - len(stop) + 1))
            if place >= 0:
                matches.append((place, number, stop))

        if not matches:
            return False

        # Of two at the same place, the one that the request names first.
        place, _, self.stop_string = min(matches)
        self.text = self.text[: place + len(self.stop_string) * self.keep_stop]
        return True

    def finish(self, token_ids: Sequence[int]) -> None:
        """Take the text of all tokens, which ends with what a token alone does not complete."""
        if self.stop_string is None:
            self.text = str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def message(self) -> dict[str, Any]:
        """Return the finished answer as a message."""
        return assistant_message(self.text, in_thought=self.in_thought, may_call=self.may_call)

    def next_content(self) -> str:
        """Return the content that no later token can change and that was not returned before."""
        content = settled_content(self.text, in_thought=self.in_thought, may_call=self.may_call)
        for stop in self.stops:
            content = without_begun(content, stop)
        return self._unsent(content)

    def last_content(self) -> str:
        """Return what is left of the finished answer's content."""
        return self._unsent(str(self.message()["content"] or ""))

    def _unsent(self, content: str) -> str:
        new = content[self._sent :]
        self._sent += len(new)
        return new
