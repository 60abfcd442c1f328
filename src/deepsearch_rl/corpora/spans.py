"""Where sentences and tokens lie in a text, as (start, end) character offsets, in time linear in the text."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from deepsearch_rl.errors import ConfigError, UnavailableError, UnknownNameError

Span = tuple[int, int]
TokenSpans = Callable[[str], Iterable[Span]]
"""A tokenizer, as far as chunking needs one: the offsets of a text's tokens, in order."""

MAX_SENTENCE_CHARS = 20_000
"""Longer sentences are cut at white space, so that no tokenizer is given megabytes at once."""

_ABBREVIATIONS = (
    *("Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Jr", "Sr", "Sen", "Gov", "Gen", "Lt", "Col", "Inc", "Ltd", "No", "vs"),
    *("Jan", "Feb", "Mar", "Apr", "Aug", "Sept", "Sep", "Oct", "Nov", "Dec"),
)
_UNABBREVIATED = r"(?<!\b[A-Z]\.)" + "".join(rf"(?<!\b{abbreviation}\.)" for abbreviation in _ABBREVIATIONS)
_OPENING = r"""["'(\[\u2018\u201c]"""
_CLOSING = r"""["')\]\u2019\u201d]"""
# The end of a sentence is that of the group, if there is one, and the next begins behind the match: a full stop that
# ends no initial or abbreviation, before white space and a capital or digit; a CJK full stop; any newline.
_BOUNDARY = re.compile(
    rf"([.!?]{_UNABBREVIATED}{_CLOSING}?)\s+(?={_OPENING}?[A-Z0-9])" + r"|([\u3002\uff01\uff1f])" + r"|\n\s*"
)
_WORD = re.compile(r"\w+|[^\w\s]")


def sentence_spans(text: str) -> Iterator[Span]:
    """Yield the sentences of a text lazily, without surrounding white space and without empty ones."""
    start = 0
    for boundary in _BOUNDARY.finditer(text):
        yield from _bounded(text, start, boundary.end(boundary.lastindex) if boundary.lastindex else boundary.start())
        start = boundary.end()
    yield from _bounded(text, start, len(text))


def _bounded(text: str, start: int, end: int) -> Iterator[Span]:
    """The part of the text without white space at its ends, cut into pieces of at most MAX_SENTENCE_CHARS."""
    sentence = text[start:end]
    end -= len(sentence) - len(sentence.rstrip())
    start += len(sentence) - len(sentence.lstrip())
    while end - start > MAX_SENTENCE_CHARS:
        space = text.rfind(" ", start + 1, start + MAX_SENTENCE_CHARS)
        cut = space if space > 0 else start + MAX_SENTENCE_CHARS
        yield start, cut
        start = cut + 1 if space > 0 else cut
    if start < end:
        yield start, end


def word_spans(text: str) -> Iterator[Span]:
    """The tokens of the tokenizer ``words``: runs of word characters, and every other visible character alone."""
    return (match.span() for match in _WORD.finditer(text))


def load_tokenizer(name: str) -> TokenSpans:
    """The tokenizer called ``words``, or ``hf:`` and a folder with a tokenizer.json or a hub repository.

    A repository may be followed by ``@`` and a revision.

    Raises:
        UnknownNameError: no such kind of tokenizer.
        UnavailableError: the folder or repository cannot be read.
    """
    if name == "words":
        return word_spans
    if not name.startswith("hf:"):
        raise UnknownNameError("tokenizer", name, ["words", "hf:<folder or repository>"])
    return _load_hf_tokenizer(name.removeprefix("hf:"))


def _load_hf_tokenizer(source: str) -> TokenSpans:
    from tokenizers import Tokenizer  # noqa: PLC0415 - only profiles that count by a model's tokens load it

    if not source:
        raise ConfigError("tokenizer 'hf:' needs a folder or a repository after it, e.g. 'hf:intfloat/e5-base-v2'.")
    repository, _, revision = source.partition("@")
    file = Path(source, "tokenizer.json")
    try:
        if file.is_file():
            tokenizer = Tokenizer.from_file(str(file))
        else:
            tokenizer = Tokenizer.from_pretrained(repository, revision=revision or "main")
    except Exception as error:  # the library raises bare Exception for whatever goes wrong
        raise UnavailableError(
            f"no tokenizer at {source!r}: there is no {file}, and the hub did not give one ({error}). "
            "Check the name, or give a folder with a tokenizer.json."
        ) from error
    return lambda text: tokenizer.encode(text, add_special_tokens=False).offsets
