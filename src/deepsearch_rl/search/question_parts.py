"""Split a question into sources, days and parts, which each ask for one passage.

A multi-hop question names its passages one after the other ("Does the TechCrunch article on A ...,
while The Verge reports B on October 4, 2023?"), and a passage that fits one part well is worth more
than one that fits all a little. Sources come from the index's row table; parts are the pieces
between punctuation, conjunctions, sources and dates.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from deepsearch_rl.search.analysis import UNSPACED, has_unspaced
from deepsearch_rl.search.dates import DayRange, find_dates

# A question has a handful of each. A page that is pasted in place of one may have thousands, and
# every one takes time.
MAX_PARTS = 32
MAX_SOURCES = 16

Span = tuple[int, int]
_BREAK = re.compile(
    r"\n|[,;:?!()]\s|[\"\u201c\u201d]|[\u3001\u3002\u300a-\u300f\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f]"
    r"|\b(?:and|or|but|while|whereas|than|which|who|that|with|after|before|between)\b",
    re.IGNORECASE,
)
_TOKEN = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class QuestionParts:
    """A question, split."""

    # Codes of the first MAX_SOURCES sources that it names, ascending
    sources: tuple[int, ...]
    days: tuple[DayRange, ...]
    # The question without sources and dates
    whole: str
    # The first MAX_PARTS pieces of ``whole`` that have two words, or letters of a script without
    # blanks; else all
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceNames:
    """Finds the sources of a corpus in a text: as whole words, in any case, the longest name first."""

    # By a name's tokens; sources may differ in case or spacing alone
    codes: dict[tuple[str, ...], tuple[int, ...]]
    # Tokens of the longest name
    longest: int

    @classmethod
    def of(cls, sources: Sequence[str]) -> Self:
        """Return the names of a row table's ``sources``, whose positions are the codes."""
        codes: dict[tuple[str, ...], tuple[int, ...]] = {}
        for code, source in enumerate(sources):
            name = tuple(_TOKEN.findall(source.lower()))
            if name:
                codes[name] = (*codes.get(name, ()), code)

        return cls(codes, max(map(len, codes), default=0))

    def find(self, text: str) -> list[tuple[Span, tuple[int, ...]]]:
        """Return where sources are named, in order, each with the codes of the sources of that name."""
        tokens = [(match[0].lower(), match.span()) for match in _TOKEN.finditer(text)]
        mentions: list[tuple[Span, tuple[int, ...]]] = []
        start = 0

        while start < len(tokens):
            words = tuple(token for token, _ in tokens[start : start + self.longest])
            name = self._name_at_begin(words)
            if name:
                _, (begin, _) = tokens[start]
                _, (_, end) = tokens[start + len(name) - 1]
                mentions.append(((begin, end), self.codes[name]))

            # The longest name counts, and its words begin no other
            start += len(name) or 1

        return mentions

    def _name_at_begin(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the longest name that the words begin with; the empty one where there is none."""
        while words and words not in self.codes:
            words = words[:-1]

        return words


def split_question(question: str, names: SourceNames) -> QuestionParts:
    """Find the sources and days of a question and split the rest into parts."""
    mentions = names.find(question)
    dates = find_dates(question)
    spans = [span for span, _ in mentions]
    spans += [match.span() for match, _ in dates]
    pieces: list[str] = []
    end = 0

    for start, stop in sorted(spans):
        # A source and a date may overlap.
        if start >= end:
            pieces.append(question[end:start])
        end = max(end, stop)
    pieces.append(question[end:])

    # What stands before a source and what stands behind it are parts of their own: _BREAK splits
    # at the line break.
    whole = "\n".join(pieces)

    # A question of nothing but sources and dates is searched for as it is.
    if not re.search(r"\w", whole):
        whole = question

    # A dict keeps the order in which the question names the sources.
    sources: dict[int, None] = {}
    for _, codes in mentions:
        sources.update(dict.fromkeys(codes))

    return QuestionParts(
        tuple(sorted([*sources][:MAX_SOURCES])),
        tuple(days for _, days in dates),
        whole,
        _parts(whole) or (whole,),
    )


def _parts(whole: str) -> tuple[str, ...]:
    """Return the first pieces of a question that can name a passage: one word alone says too little."""
    parts: list[str] = []
    for piece in _BREAK.split(whole):
        if len(piece.split()) > 1 or has_unspaced(piece):
            parts.append(piece)

    return tuple(parts[:MAX_PARTS])
