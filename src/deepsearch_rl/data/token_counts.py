"""Tokenizers for chunking: counts and offsets of tokens."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from deepsearch_rl.core.errors import UnavailableError, UnknownNameError
from deepsearch_rl.data.sentences import Span, count_words, word_spans

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Encodings hold offsets and texts of all their tokens, many times the size of the sentences
SENTENCES_AT_ONCE = 4096


class WordCounter:
    """The tokenizer ``words``: runs of word characters, and every other visible character alone."""

    def counts(self, text: str, sentences: Sequence[Span]) -> list[int]:
        """Return the number of words of each sentence."""
        return [count_words(text, start, end) for start, end in sentences]

    def spans(self, text: str) -> Iterable[Span]:
        """Return the offsets of a text's words."""
        return word_spans(text)


class HfCounter:
    """A tokenizer of the library ``tokenizers``, without special tokens, truncation and padding."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def counts(self, text: str, sentences: Sequence[Span]) -> list[int]:
        """Return the number of tokens of each sentence."""
        counts: list[int] = []
        for first in range(0, len(sentences), SENTENCES_AT_ONCE):
            batch = [text[start:end] for start, end in sentences[first : first + SENTENCES_AT_ONCE]]
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            counts += map(len, encodings)

        return counts

    def spans(self, text: str) -> Iterable[Span]:
        """Return the offsets of a text's tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets


TokenCounter: TypeAlias = WordCounter | HfCounter


def load_tokenizer(name: str) -> TokenCounter:
    """Return the tokenizer ``words`` or ``hf:<folder or repository[@revision]>``.

    Raises UnknownNameError for another form, UnavailableError if it cannot be loaded.
    """
    if name == "words":
        return WordCounter()
    source = name.removeprefix("hf:")
    if source in ("", name):
        raise UnknownNameError("tokenizer", name, ["words", "hf:<folder or repository>"])
    from tokenizers import Tokenizer  # noqa: PLC0415 - only profiles that count by a model's tokens load it

    repository, _, revision = source.partition("@")
    file = Path(source, "tokenizer.json")

    try:
        if file.is_file():
            return HfCounter(Tokenizer.from_file(str(file)))
        return HfCounter(Tokenizer.from_pretrained(repository, revision=revision or "main"))
    except Exception as error:
        # The library raises bare Exceptions
        raise UnavailableError(
            f"no tokenizer at {source!r}: there is no {file}, and the hub did not give one ({error}). "
            "Check the name, or give a folder with a tokenizer.json."
        ) from error
