"""Tokens of texts of which most parts came before.

An agent sends its whole conversation with every turn, and to encode all of it each time took a
sixth of a small model server's CPU time. A tokenizer cuts a text at its special tokens before it
does anything else, so the parts between them can be encoded one by one and be remembered.
"""

import functools
import itertools
import re

from transformers import PreTrainedTokenizerBase

# A part is a message or less; all rollouts share the system prompt, a group shares its question
REMEMBERED_PARTS = 4096
# What may stand beside a special token; a tokenizer that treats the beginning of a text, or the
# white space around a special token, in its own way gives itself away with them
PROBES = ("Word", " word", "word ", "\n\nWord\n")


class TextTokens:
    """Encodes texts with a tokenizer, and remembers the tokens of their parts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._part_ids = functools.lru_cache(REMEMBERED_PARTS)(self._encode)
        marks = [mark for mark in _special_tokens(tokenizer) if self._is_cut_at(mark)]
        # The longest first: one may begin with another
        marks.sort(key=len, reverse=True)
        self._mark = re.compile(f"({'|'.join(map(re.escape, marks))})") if marks else None

    @property
    def is_cut(self) -> bool:
        """Whether texts are encoded in parts; False where the tokenizer gives other tokens then."""
        return self._mark is not None

    def ids(self, text: str) -> list[int]:
        """Return the tokens that the tokenizer gives for a text, without any that it adds around it."""
        if self._mark is None:
            return list(self._encode(text))

        ids: list[int] = []
        for part in self._mark.split(text):
            if part:
                ids.extend(self._part_ids(part))
        return ids

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _is_cut_at(self, mark: str) -> bool:
        """Return whether what stands before and after a special token can be encoded alone."""
        for before, after in itertools.product(PROBES, PROBES):
            parts = self._part_ids(before) + self._part_ids(mark) + self._part_ids(after)
            if self._encode(before + mark + after) != parts:
                return False
        return True


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
