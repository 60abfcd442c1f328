"""Tokenizers for chunking: counts and offsets of tokens."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.errors import UnavailableError, UnknownNameError
from deepsearch_rl.data.spans import Sentences, Span, word_spans

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Encodings hold offsets and texts of all their tokens, so that those of a whole block would take
# many times its size.
SENTENCES_AT_ONCE = 4096


class WordCounter:
    """Tokenizer ``words``: runs of word characters, and every other visible character alone."""

    def counts(self, text: str, sentences: Sentences) -> NDArray[np.int64]:  # noqa: ARG002 - they are counted already
        """Return the number of words of each sentence."""
        return sentences.words_N

    def spans(self, text: str) -> Iterable[Span]:
        """Return the offsets of a text's words."""
        return word_spans(text)


class HfCounter:
    """A tokenizer of the library ``tokenizers``, without the special tokens of its template."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        # A tokenizer that truncates or pads its input, as a model needs it, would miscount.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def counts(self, text: str, sentences: Sentences) -> NDArray[np.int64]:
        """Return the number of tokens of each sentence."""
        spans = zip(sentences.starts_N.tolist(), sentences.ends_N.tolist(), strict=True)
        texts = [text[start:end] for start, end in spans]
        counts: list[int] = []

        for start in range(0, len(texts), SENTENCES_AT_ONCE):
            batch = texts[start : start + SENTENCES_AT_ONCE]
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            counts += map(len, encodings)

        return np.array(counts, dtype=np.int64)

    def spans(self, text: str) -> Iterable[Span]:
        """Return the offsets of a text's tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets


TokenCounter: TypeAlias = WordCounter | HfCounter


def load_tokenizer(name: str) -> TokenCounter:
    """Return the tokenizer ``words`` or ``hf:<folder or repository[@revision]>``; raise UnavailableError if unread."""
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
        # The library raises bare Exception for whatever goes wrong
        raise UnavailableError(
            f"no tokenizer at {source!r}: there is no {file}, and the hub did not give one ({error}). "
            "Check the name, or give a folder with a tokenizer.json."
        ) from error
