"""The audit: a draft passes all checks, or is counted under the first that it fails.

Checks go from cheap ones to those that ask a model; docs/own_data.md lists them.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import Field

from deepsearch_rl.core.answers import CLOSED_ANSWERS, SUCCESS_F1, f1, normalise, word_similarity
from deepsearch_rl.core.records import Record
from deepsearch_rl.data.question_writing.drafts import Draft, prompt_file, shown_passages
from deepsearch_rl.data.question_writing.model_calls import LoggedModel
from deepsearch_rl.search.gold import without_space
from deepsearch_rl.search.searcher import SearchesChunks


class Reason(StrEnum):
    """Why a draft is rejected, in the order of the checks."""

    TOO_LONG = "too_long"
    EVIDENCE_MISSING = "evidence_missing"
    NOT_VERBATIM = "not_verbatim"
    ANSWER_NOT_IN_EVIDENCE = "answer_not_in_evidence"
    NEAR_DUPLICATE = "near_duplicate"
    NOT_FINDABLE = "not_findable"
    KNOWN_WITHOUT_PASSAGES = "known_without_passages"
    ONE_PASSAGE_IS_ENOUGH = "one_passage_is_enough"
    NOT_ANSWERED = "not_answered"
    ANSWERABLE = "answerable"


class AuditConfig(Record):
    """What a question has to pass."""

    answer_words: int = Field(ge=1, description="most words of an answer")
    similarity: float = Field(
        gt=0,
        le=1,
        description="share of common words from which two questions with the same answer are duplicates",
    )
    findable_in: int = Field(
        ge=1, description="depth at which a query has to find every piece of evidence"
    )
    samples: int = Field(ge=1, description="answers per check that asks a model")
    agreeing: int = Field(
        ge=1, description="right ones among them from which a question counts as answered"
    )


@dataclass(frozen=True, slots=True)
class _QuestionWords:
    """Normalised words of a question, and its answer."""

    words: frozenset[str]
    answer: str

    @classmethod
    def of(cls, draft: Draft) -> "_QuestionWords":
        words = frozenset(normalise(draft.question).split())
        return cls(words, normalise(draft.golden_answer))

    def similarity(self, other: "_QuestionWords") -> float:
        """Return the Jaccard similarity of the words, 0 if the answers differ."""
        if self.answer != other.answer:
            return 0.0
        return word_similarity(self.words, other.words)


@dataclass(slots=True)
class Auditor:
    """Checks drafts, also against those that passed earlier."""

    config: AuditConfig
    searcher: SearchesChunks
    model: LoggedModel
    _kept: list[_QuestionWords] = field(default_factory=list)

    def check(self, drafts: Sequence[Draft]) -> list[Reason | None]:
        """Return why each draft is rejected, None if it is kept; prompts about all drafts are sent together."""
        # Each check sees only what passed the cheaper ones
        reasons: list[Reason | None] = [self._by_text(draft) for draft in drafts]
        questions = [_QuestionWords.of(draft) for draft in drafts]
        self._reject_copies(questions, reasons)
        self._find_evidence(drafts, reasons)
        self._ask(drafts, reasons)
        self._kept.extend(questions[place] for place in _passing(reasons))
        return reasons

    def _reject_copies(
        self, questions: Sequence[_QuestionWords], reasons: list[Reason | None]
    ) -> None:
        others = list(self._kept)
        for place in _passing(reasons):
            question = questions[place]
            if any(question.similarity(other) >= self.config.similarity for other in others):
                reasons[place] = Reason.NEAR_DUPLICATE
            else:
                others.append(question)

    def _by_text(self, draft: Draft) -> Reason | None:
        if len(draft.answer.split()) > self.config.answer_words:
            return Reason.TOO_LONG
        if draft.is_unanswerable:
            return None

        # A passage without a quote is not needed for the answer
        quoted = {chunk.id for chunk, sentence in draft.proofs if sentence}
        if quoted != draft.group.ids:
            return Reason.EVIDENCE_MISSING
        for chunk, sentence in draft.proofs:
            # Models change line ends and blanks when they quote
            if without_space(sentence) not in without_space(chunk.contents):
                return Reason.NOT_VERBATIM

        # Which of two, how long between them: neither passage alone says it
        is_derived = draft.type in ("comparison", "temporal")
        answer = normalise(draft.answer)
        if answer in CLOSED_ANSWERS or is_derived:
            return None
        evidence = " ".join(f"{chunk.title} {sentence}" for chunk, sentence in draft.proofs)
        # As whole words: the answer `art` is not in `part`
        is_there = bool(answer) and f" {answer} " in f" {normalise(evidence)} "
        return None if is_there else Reason.ANSWER_NOT_IN_EVIDENCE

    def _find_evidence(self, drafts: Sequence[Draft], reasons: list[Reason | None]) -> None:
        """Reject drafts with a passage that no query about it finds."""
        waiting = [place for place in _passing(reasons) if not drafts[place].is_unanswerable]
        # Drafts share queries
        queries: dict[str, set[str]] = {}
        for place in waiting:
            for query in _queries(drafts[place]):
                queries[query] = set()

        names = list(queries)
        depth = self.config.findable_in
        for query, hits in zip(names, self.searcher.find_hits(names, depth), strict=True):
            queries[query] = {hit.chunk.id for hit in hits}

        for place in waiting:
            draft = drafts[place]
            findable: set[str] = set()
            for query in _queries(draft):
                findable |= queries[query]

            if not {chunk.id for chunk, _ in draft.proofs} <= findable:
                reasons[place] = Reason.NOT_FINDABLE

    def _ask(self, drafts: Sequence[Draft], reasons: list[Reason | None]) -> None:
        """Reject what a model answers without all passages, or does not answer with them."""
        self._reject_answered(drafts, reasons, Reason.KNOWN_WITHOUT_PASSAGES)
        self._reject_answered(drafts, reasons, Reason.ONE_PASSAGE_IS_ENOUGH)

        places = _passing(reasons)
        prompts = [self._with_passages(drafts[place]) for place in places]
        counts = self._count_right_answers(drafts, places, prompts)
        for place, count in zip(places, counts, strict=True):
            if count < self.config.agreeing:
                is_unanswerable = drafts[place].is_unanswerable
                reasons[place] = Reason.ANSWERABLE if is_unanswerable else Reason.NOT_ANSWERED

    def _reject_answered(
        self, drafts: Sequence[Draft], reasons: list[Reason | None], reason: Reason
    ) -> None:
        """Reject what is answered from memory, or from one of several passages."""
        places: list[int] = []
        prompts: list[str] = []
        for place in _passing(reasons):
            draft = drafts[place]
            if draft.is_unanswerable:
                continue
            if reason is Reason.KNOWN_WITHOUT_PASSAGES:
                places.append(place)
                prompts.append(prompt_file("recall").substitute(question=draft.question))
            elif len(draft.group.chunks) > 1:
                for chunk in draft.group.chunks:
                    places.append(place)
                    prompts.append(_answer_prompt(draft, chunk.contents))

        counts = self._count_right_answers(drafts, places, prompts)
        for place, count in zip(places, counts, strict=True):
            if count >= self.config.agreeing:
                reasons[place] = reason

    def _with_passages(self, draft: Draft) -> str:
        """Return the prompt with the draft's passages; an unanswerable one also gets those that it finds."""
        if not draft.is_unanswerable:
            return _answer_prompt(draft, shown_passages(draft.group.chunks))

        [hits] = self.searcher.find_hits([draft.question], 10)
        nearest = [hit.chunk for hit in hits]
        ids = {chunk.id for chunk in nearest}
        # Each passage is shown once
        own = [chunk for chunk in draft.group.chunks if chunk.id not in ids]
        return _answer_prompt(draft, shown_passages([*own, *nearest]))

    def _count_right_answers(
        self, drafts: Sequence[Draft], places: Sequence[int], prompts: Sequence[str]
    ) -> list[int]:
        """Send every prompt ``samples`` times and return its number of right answers.

        Prompt i is about the draft at ``places[i]``.
        """
        samples = self.config.samples
        replies = iter(self.model.ask_all(list(itertools.product(prompts, range(samples)))))
        counts: list[int] = []
        for place in places:
            gold = [drafts[place].golden_answer]
            answers = itertools.islice(replies, samples)
            counts.append(sum(f1(answer, gold) >= SUCCESS_F1 for answer in answers))

        return counts


def _passing(reasons: Sequence[Reason | None]) -> list[int]:
    return [place for place, reason in enumerate(reasons) if reason is None]


def _answer_prompt(draft: Draft, passages: str) -> str:
    return prompt_file("answer").substitute(passages=passages, question=draft.question)


def _queries(draft: Draft) -> list[str]:
    """Return what a user could search for: the question, the terms that link its passages, their titles."""
    titles = [chunk.title for chunk, _ in draft.proofs]
    return list(dict.fromkeys([draft.question, *draft.group.terms, *titles]))


class Funnel(Record):
    """``audit.json``: how many drafts there were, and why they were rejected."""

    bundles: int = Field(ge=0, description="passages, pairs and chains that the writer got")
    unreadable_replies: int = Field(ge=0)
    cut_replies: int = Field(ge=0, description="that max_tokens ended, of writing and audit")
    drafts: int = Field(ge=0)
    rejected: dict[Reason, int]
    kept: int = Field(ge=0)
    kept_by_type: dict[str, int]
    kept_by_split: dict[str, int]
    tokens: int = Field(ge=0, description="of all prompts and replies")
    stopped_by: str = Field(description="enough, budget, or passages: what ended the writing")

    @classmethod
    def of(cls, reasons: Counter[Reason], **counts: object) -> "Funnel":
        """Return the funnel with every reason, in the order of the checks."""
        rejected: dict[Reason, int] = {}
        for reason in Reason:
            rejected[reason] = reasons[reason]

        return cls.model_validate({"rejected": rejected, **counts})
