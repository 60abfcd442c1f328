"""What a question says about where its evidence stands: sources by name, days, and the parts it asks for one by one.

A multi-hop question names its passages one after the other ("Does the TechCrunch article on A ..., while The Verge
reports B on October 4, 2023?"). Each passage answers one part, and a passage that fits one part well is worth more
than one that fits all a little. Nothing here knows a corpus: sources come from the index's own row table, and parts
are whatever stands between punctuation, conjunctions and what was recognised as a source or a date.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from deepsearch_rl.retrieval.hybrid.dates import DayRange, find_dates

_BREAK = re.compile(
    r"\n|[,;:?!()]\s|[\"\u201c\u201d]"
    r"|\b(?:and|or|but|while|whereas|than|which|who|that|with|after|before|between)\b",
    re.IGNORECASE,
)
MOST_PARTS, MOST_SOURCES = 32, 16
"""A question has a handful; a page pasted in place of one may have thousands, and each takes time."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SourceNames:
    """Finds the sources of a corpus in a text: as whole words, in any case, the longest name first.

    A name is looked up as a run of tokens, so that thousands of names cost no more than ten.
    """

    codes: dict[tuple[str, ...], tuple[int, ...]]
    """By the tokens of a name; several sources may differ in case or spacing alone."""
    longest: int
    """Tokens of the longest name."""

    @classmethod
    def of(cls, sources: Sequence[str]) -> Self:
        """From a row table's ``sources``, whose positions are the codes."""
        codes: dict[tuple[str, ...], tuple[int, ...]] = {}
        for code, source in enumerate(sources):
            name = tuple(_TOKEN.findall(source.lower()))
            if name:
                codes[name] = (*codes.get(name, ()), code)
        return cls(codes, max(map(len, codes), default=0))

    def find(self, text: str) -> list[tuple[Span, tuple[int, ...]]]:
        """Where sources are named, in order, each with the codes of the sources of that name."""
        tokens = [(match[0].lower(), match.span()) for match in _TOKEN.finditer(text)]
        found: list[tuple[Span, tuple[int, ...]]] = []
        start = 0
        while start < len(tokens):
            length = self._name_length([token for token, _ in tokens[start : start + self.longest]])
            if length:
                last = start + length - 1
                name = tuple(token for token, _ in tokens[start : last + 1])
                found.append(((tokens[start][1][0], tokens[last][1][1]), self.codes[name]))
            start += length or 1
        return found

    def _name_length(self, tokens: Sequence[str]) -> int:
        """Tokens of the longest name that the text begins with here; 0 where it begins with none."""
        return next((length for length in range(len(tokens), 0, -1) if tuple(tokens[:length]) in self.codes), 0)


@dataclass(frozen=True, slots=True)
class QuestionParts:
    """A question taken apart."""

    sources: tuple[int, ...]
    """Codes of the first MOST_SOURCES sources that it names, ascending."""
    days: tuple[DayRange, ...]
    whole: str
    """The question without sources and dates."""
    parts: tuple[str, ...]
    """The first MOST_PARTS pieces of ``whole`` that have two words or more; all of it where there are none."""


def take_apart(question: str, names: SourceNames) -> QuestionParts:
    """Find the sources and days of a question and cut the rest into parts."""
    mentions, dates = names.find(question), find_dates(question)
    whole = _blanked(question, [*(span for span, _ in mentions), *(match.span() for match, _ in dates)])
    whole = whole if re.search(r"\w", whole) else question
    parts = tuple(part for part in _BREAK.split(whole) if len(part.split()) > 1)[:MOST_PARTS]
    sources = dict.fromkeys(code for _, codes in mentions for code in codes)
    return QuestionParts(
        tuple(sorted([*sources][:MOST_SOURCES])), tuple(days for _, days in dates), whole, parts or (whole,)
    )


def _blanked(text: str, spans: Sequence[Span]) -> str:
    """The text with a line break in place of spans, which may overlap, so that a part ends there."""
    kept, end = [], 0
    for start, stop in sorted(spans):
        if start >= end:
            kept.append(text[end:start])
        end = max(end, stop)
    return "\n".join([*kept, text[end:]])
