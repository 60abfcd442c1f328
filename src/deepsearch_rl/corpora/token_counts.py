"""Tokenizers for chunking: counts and offsets of tokens."""

import json
import string
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.corpora.spans import Sentences, Span, word_spans
from deepsearch_rl.errors import UnavailableError, UnknownNameError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SENTENCES_AT_ONCE = 4096
MAX_KNOWN_WORDS = 1 << 19  # words whose counts are remembered, about 100 MB
_SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
"""White space to Python, but control characters to BERT, which drops them and joins the words around them."""


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
        self._count_word = _word_counts(tokenizer) if splits_at_white_space(tokenizer) else None

    def counts(self, text: str, sentences: Sentences) -> NDArray[np.int64]:
        """Return the number of tokens of each sentence."""
        spans = zip(sentences.starts_N.tolist(), sentences.ends_N.tolist(), strict=True)
        texts = [text[start:end] for start, end in spans]
        count_word = self._count_word
        if count_word is None or any(separator in text for separator in _SEPARATORS):
            encode = self._tokenizer.encode_batch_fast
            batches = (texts[start : start + SENTENCES_AT_ONCE] for start in range(0, len(texts), SENTENCES_AT_ONCE))
            encodings = chain.from_iterable(encode(batch, add_special_tokens=False) for batch in batches)
            return np.fromiter(map(len, encodings), np.int64, len(texts))
        counts = (sum(map(count_word, sentence.split())) for sentence in texts)
        return np.fromiter(counts, np.int64, len(texts))

    def spans(self, text: str) -> Iterable[Span]:
        """Return the offsets of a text's tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets


def splits_at_white_space(tokenizer: "Tokenizer") -> bool:
    """Return whether a text has as many tokens as its words alone: with BERT's kind, not with GPT's or Llama's."""
    settings = json.loads(tokenizer.to_str())
    normalizer, splitter = (settings[part] and settings[part]["type"] for part in ("normalizer", "pre_tokenizer"))
    return (
        splitter in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
        and normalizer in (None, "BertNormalizer", "Lowercase")
        and not any(character.isspace() for token in settings["added_tokens"] for character in token["content"])
    )


def _word_counts(tokenizer: "Tokenizer") -> Callable[[str], int]:
    """Return a function that counts the tokens of a word without white space; few words make up most of a text."""
    settings = json.loads(tokenizer.to_str())
    added = "".join(token["content"] for token in settings["added_tokens"])
    # BERT makes every ASCII punctuation mark a token of its own, unless it is part of an added token.
    apart = string.punctuation if settings["pre_tokenizer"]["type"] == "BertPreTokenizer" else ""
    apart = "".join(mark for mark in apart if mark not in added)

    @lru_cache(MAX_KNOWN_WORDS)
    def count(word: str) -> int:
        core = word.strip(apart)
        if core == word:
            return len(tokenizer.encode(word, add_special_tokens=False))
        return len(word) - len(core) + (count(core) if core else 0)

    return count


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
    except Exception as error:  # the library raises bare Exception for whatever goes wrong
        raise UnavailableError(
            f"no tokenizer at {source!r}: there is no {file}, and the hub did not give one ({error}). "
            "Check the name, or give a folder with a tokenizer.json."
        ) from error
