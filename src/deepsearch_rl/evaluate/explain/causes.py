"""Why an answer lost points: exactly one cause for every answer that lost any.

docs/evaluation.md, "Where the points are lost", has the causes with their formulas. The causes are
looked for in the order in which an answer could have gone right, with three rules that keep the
blame where it belongs:

- An answer that is right and scores less than 1 has lost its points to the metric, whatever was
  found.
- A rollout that a server ended says nothing about the model: after the corpus, which no server can
  repair, it is infrastructure.
- A rollout that was cut off before its first search had no chance to find anything: it is cut off,
  and did not "never search".
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from deepsearch_rl.core.answers import CLOSED_ANSWERS, SUCCESS_F1, AnswerScores, normalise
from deepsearch_rl.core.records import SERVER_FAILURES, StopReason


class Cause(StrEnum):
    """Where an answer lost its points, in the order in which it could have gone right."""

    NOT_IN_CORPUS = "not_in_corpus"
    NEVER_SEARCHED = "never_searched"
    BAD_QUERY = "bad_query"
    INDEX_MISSES = "index_misses"
    NOT_FOUND = "not_found"
    PARTLY_FOUND = "partly_found"
    NOT_USED = "not_used"
    REFUSED = "refused"
    METRIC = "metric"
    CUT_OFF = "cut_off"
    INFRASTRUCTURE = "infrastructure"
    UNANSWERABLE = "unanswerable"
    UNKNOWN = "unknown"


# What tables and pages call the causes
TITLES: dict[Cause, str] = {
    Cause.NOT_IN_CORPUS: "gold not in the corpus",
    Cause.NEVER_SEARCHED: "never searched",
    Cause.BAD_QUERY: "not found: bad query",
    Cause.INDEX_MISSES: "not found: index misses it",
    Cause.NOT_FOUND: "not found, no index to say why",
    Cause.PARTLY_FOUND: "partly found",
    Cause.NOT_USED: "found and not used",
    Cause.REFUSED: "found, and the answer refused",
    Cause.METRIC: "right, lost to the metric",
    Cause.CUT_OFF: "cut off",
    Cause.INFRASTRUCTURE: "infrastructure",
    Cause.UNANSWERABLE: "answered what has no answer",
    Cause.UNKNOWN: "what was found is not known",
}
# How a row of another system ended that says no more than that it failed
FAILED = "failed"
# Ends before an answer that are the rollout's own: a budget, the time, or a call that nobody can
# read
_CUT_OFF = frozenset(
    {
        StopReason.SEARCH_BUDGET,
        StopReason.TURN_BUDGET,
        StopReason.TOKEN_BUDGET,
        StopReason.DEADLINE,
        StopReason.TOOL_CALL_UNPARSABLE,
        FAILED,
    }
)
# How a normalised answer says that there is none
_REFUSAL = re.compile(
    r"\b(insufficient information|not enough information|no information|no answer|noanswer|unanswerable"
    r"|i (do not|dont|did not|didnt) (know|have|find)|(can ?not|cant|could not|couldnt|unable to) "
    r"(be )?(answer|determine|find|provide|identify|confirm)\w*|not (found|available|known|mentioned|"
    r"provided|specified|stated)|found nothing)\b|^(unknown|none|n a|na|null)$"
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known about one answer.

    ``items`` is the number of gold items, None where the evidence is unknown; ``in_corpus`` and
    ``shown_items`` are how many of them the corpus has and the answer's searches showed, None where
    that is unknown. ``searches`` is None where a file does not say what was searched. ``findable`` says
    whether the question itself or a gold title finds an item in the top k; None without an index.
    """

    pred: str
    last_text: str
    golds: tuple[str, ...]
    scores: AnswerScores
    stop: str
    unanswerable: bool
    searches: int | None
    items: int | None = None
    in_corpus: int | None = None
    shown_items: int | None = None
    findable: bool | None = None

    @property
    def lost(self) -> float:
        """The points that were lost, 1 - F1."""
        return 1 - self.scores.f1

    @property
    def without_evidence(self) -> bool:
        """Whether the answer is right although some gold evidence was never shown: luck or memory."""
        return (
            self.lost == 0
            and self.items is not None
            and self.shown_items is not None
            and self.shown_items < self.items
        )


def find_cause(answer: Findings) -> Cause | None:
    """Return why an answer lost points; None where it lost none."""
    if answer.lost == 0:
        return None

    is_broken = answer.stop in SERVER_FAILURES
    is_cut_off = answer.stop in _CUT_OFF
    # First: whatever was found, the answer is right
    if lost_to_metric(answer):
        return Cause.METRIC

    lacks_gold = answer.items is not None and answer.in_corpus is not None
    # Before all that went wrong on the way: no search could have found it
    if lacks_gold and answer.in_corpus != answer.items:
        return Cause.NOT_IN_CORPUS
    if is_broken:
        return Cause.INFRASTRUCTURE

    # What was found says nothing here, or is not known
    if answer.unanswerable:
        return Cause.CUT_OFF if is_cut_off else Cause.UNANSWERABLE
    if answer.searches == 0:
        return Cause.CUT_OFF if is_cut_off else Cause.NEVER_SEARCHED
    if answer.searches is None or answer.items is None or answer.shown_items is None:
        return Cause.CUT_OFF if is_cut_off else Cause.UNKNOWN

    if answer.shown_items == 0:
        return _why_not_found(answer)
    if answer.shown_items < answer.items:
        return Cause.PARTLY_FOUND
    if is_cut_off:
        return Cause.CUT_OFF

    text = answer.pred if answer.stop == StopReason.ANSWERED else answer.last_text
    return Cause.REFUSED if is_refusal(text) else Cause.NOT_USED


def _why_not_found(answer: Findings) -> Cause:
    if answer.findable is None:
        return Cause.NOT_FOUND
    return Cause.BAD_QUERY if answer.findable else Cause.INDEX_MISSES


def lost_to_metric(answer: Findings) -> str:
    """Return how a right answer lost points: ``extra words``, ``alias`` or ``format``; empty where it is not right.

    ``format`` is a right answer outside the answer tags. What says that there is no answer is right
    where there is none, and there alone; what names a golden answer only as a part of a word is
    not right.
    """
    if answer.stop == StopReason.NO_ANSWER_TAG and not answer.pred:
        return "format" if answer.last_text and _is_right(answer.last_text, answer) else ""
    if answer.stop != StopReason.ANSWERED or not answer.pred:
        return ""
    if answer.unanswerable or is_refusal(answer.pred):
        return "alias" if _is_right(answer.pred, answer) else ""
    if answer.scores.em == 1 or _names_gold(answer.pred, answer.golds):
        return "extra words"
    folded = _fold(answer.pred)
    is_alias = bool(folded) and any(folded == _fold(gold) for gold in answer.golds)
    return "alias" if is_alias or answer.scores.f1 >= SUCCESS_F1 else ""


def _is_right(text: str, answer: Findings) -> bool:
    if answer.unanswerable or is_refusal(text):
        return answer.unanswerable and is_refusal(text)
    return _names_gold(text, answer.golds)


def is_refusal(text: str) -> bool:
    """Return whether a text says that there is no answer, or says nothing at all."""
    normal = normalise(text)
    return not normal or _REFUSAL.search(normal) is not None


def _names_gold(text: str, golds: Sequence[str]) -> bool:
    """Return whether a text holds a golden answer as whole words; a closed one must come first."""
    words = f" {normalise(text)} "
    for gold in golds:
        normal = normalise(gold)
        if not normal:
            continue
        if normal in CLOSED_ANSWERS:
            # Yes and no stand in many sentences: as an answer they come first
            if words.startswith(f" {normal} "):
                return True
        elif f" {normal} " in words:
            return True

    return False


def _fold(text: str) -> str:
    """Return the letters and digits of a text without case, accents and articles."""
    plain = unicodedata.normalize("NFKD", normalise(text)).casefold()
    return "".join(letter for letter in plain if letter.isalnum())
