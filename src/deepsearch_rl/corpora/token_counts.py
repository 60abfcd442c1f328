"""Tokenizers for chunking: counts and offsets of tokens."""

import json
import string
from collections.abc import Iterable
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
MAX_KNOWN_WORDS = 1 << 20
"""Words whose counts are remembered, about 100 MB."""
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
        self._words = _WordCounts(tokenizer) if splits_at_white_space(tokenizer) else None

    def counts(self, text: str, sentences: Sentences) -> NDArray[np.int64]:
        """Return the number of tokens of each sentence."""
        spans = zip(sentences.starts_N.tolist(), sentences.ends_N.tolist(), strict=True)
        texts = [text[start:end] for start, end in spans]
        words = self._words
        if words is None or any(separator in text for separator in _SEPARATORS):
            encode = self._tokenizer.encode_batch_fast
            batches = (texts[start : start + SENTENCES_AT_ONCE] for start in range(0, len(texts), SENTENCES_AT_ONCE))
            encodings = chain.from_iterable(encode(batch, add_special_tokens=False) for batch in batches)
            return np.fromiter(map(len, encodings), np.int64, len(texts))
        if len(words) > MAX_KNOWN_WORDS:
            words.clear()
        counts = (sum(map(words.__getitem__, sentence.split())) for sentence in texts)
        return np.fromiter(counts, np.int64, len(texts))

    def spans(self, text: str) -> Iterable[Span]:
        """Return the offsets of a text's tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets


def splits_at_white_space(tokenizer: "Tokenizer") -> bool:
    """Return whether a text has as many tokens as the words between its white space have, each alone.

    This holds for BERT's kind, which drops white space first, and not for tokenizers that keep it in their tokens, as
    GPT's and Llama's do.
    """
    settings = json.loads(tokenizer.to_str())
    normalizer, splitter = (settings[part] and settings[part]["type"] for part in ("normalizer", "pre_tokenizer"))
    return (
        splitter in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
        and normalizer in (None, "BertNormalizer", "Lowercase")
        and not any(character.isspace() for token in settings["added_tokens"] for character in token["content"])
    )


class _WordCounts(dict[str, int]):
    """Tokens of words between white space, each word tokenized once.

    Few words make up most of a text, so that a look-up is several times cheaper than tokenizing.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        super().__init__()
        self._tokenizer = tokenizer
        settings = json.loads(tokenizer.to_str())
        added = "".join(token["content"] for token in settings["added_tokens"])
        # BERT makes every ASCII punctuation mark a token of its own, unless it is part of an added token.
        apart = string.punctuation if settings["pre_tokenizer"]["type"] == "BertPreTokenizer" else ""
        self._apart = "".join(mark for mark in apart if mark not in added)

    def __missing__(self, word: str) -> int:
        core = word.strip(self._apart) if self._apart else word
        if core == word:
            count = len(self._tokenizer.encode(word, add_special_tokens=False))
        else:
            count = len(word) - len(core) + (self[core] if core else 0)
        self[word] = count
        return count


TokenCounter: TypeAlias = WordCounter | HfCounter


def load_tokenizer(name: str) -> TokenCounter:
    """Return the tokenizer ``words`` or ``hf:<folder with a tokenizer.json, or hub repository[@revision]>``.

    Raises ConfigError for any other name, UnavailableError if the folder or repository cannot be read.
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
    except Exception as error:  # the library raises bare Exception for whatever goes wrong
        raise UnavailableError(
            f"no tokenizer at {source!r}: there is no {file}, and the hub did not give one ({error}). "
            "Check the name, or give a folder with a tokenizer.json."
        ) from error
