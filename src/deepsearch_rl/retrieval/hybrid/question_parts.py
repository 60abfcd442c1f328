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


@dataclass(frozen=True, slots=True)
class SourceNames:
    """Finds the sources of a corpus in a text: as whole words, in any case, the longest name first."""

    codes: dict[str, tuple[int, ...]]
    pattern: re.Pattern[str] | None

    @classmethod
    def of(cls, sources: Sequence[str]) -> Self:
        """From a row table's ``sources``, whose positions are the codes."""
        codes: dict[str, tuple[int, ...]] = {}
        for code, source in enumerate(sources):
            name = _key(source)
            if name:
                codes[name] = (*codes.get(name, ()), code)
        longest_first = sorted(codes, key=lambda name: (-len(name), name))
        names = "|".join(r"\s+".join(map(re.escape, name.split())) for name in longest_first)
        return cls(codes, re.compile(rf"(?<!\w)(?:{names})(?!\w)", re.IGNORECASE) if codes else None)

    def find(self, text: str) -> list[tuple[re.Match[str], tuple[int, ...]]]:
        """The mentions in order, each with the codes of the sources of that name."""
        matches = self.pattern.finditer(text) if self.pattern else ()
        return [(match, self.codes.get(_key(match[0]), ())) for match in matches]


def _key(name: str) -> str:
    return " ".join(name.lower().split())


@dataclass(frozen=True, slots=True)
class QuestionParts:
    """A question taken apart."""

    sources: tuple[int, ...]
    """Codes of the sources that it names, ascending."""
    days: tuple[DayRange, ...]
    whole: str
    """The question without sources and dates."""
    parts: tuple[str, ...]
    """The pieces of ``whole`` that have two words or more; all of it where there are none."""


def take_apart(question: str, names: SourceNames) -> QuestionParts:
    """Find the sources and days of a question and cut the rest into parts."""
    mentions, dates = names.find(question), find_dates(question)
    whole = _blanked(question, [match.span() for match, _ in (*mentions, *dates)])
    whole = whole if re.search(r"\w", whole) else question
    parts = tuple(part for part in _BREAK.split(whole) if len(part.split()) > 1)
    sources = {code for _, codes in mentions for code in codes}
    return QuestionParts(tuple(sorted(sources)), tuple(days for _, days in dates), whole, parts or (whole,))


def _blanked(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text with a line break in place of each span, so that a part ends there."""
    for start, end in sorted(spans, reverse=True):
        text = f"{text[:start]}\n{text[end:]}"
    return text
