"""How many tokens the next prompt will have, without the model's tokenizer."""

import math
from dataclasses import dataclass

GUESSED_TOKENS_PER_CHARACTER = 1 / 3
"""Until an endpoint has counted a prompt: English has about one token for four characters."""


@dataclass(slots=True)
class PromptCount:
    """The endpoint's count of the last prompt, and its tokens per character for what is new.

    Characters are those of a whole request (``AgentProtocol.characters``).
    """

    tokens_per_character: float = GUESSED_TOKENS_PER_CHARACTER
    counted: bool = False
    """Whether an endpoint has counted a prompt; without that everything is a guess."""
    _tokens: int = 0
    _characters: int = 0

    def learn(self, characters: int, tokens: int) -> None:
        """Take over the endpoint's count of a prompt of so many characters."""
        self._tokens, self._characters, self.counted = tokens, characters, True
        self.tokens_per_character = tokens / max(1, characters)

    def prompt(self, characters: int) -> int:
        """Tokens of a prompt of so many characters that goes on from the last one."""
        return self._tokens + self.of(characters - self._characters)

    def of(self, characters: int) -> int:
        """Tokens of a text of so many characters."""
        return math.ceil(characters * self.tokens_per_character)
