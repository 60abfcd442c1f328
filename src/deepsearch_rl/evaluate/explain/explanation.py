"""From judged runs to the report: lost points with intervals, groups, examples, notes, and movements."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.explain.corpus import hops_of, is_unanswerable
from deepsearch_rl.evaluate.explain.judging import (
    Corpus,
    Items,
    JudgedAnswer,
    JudgedRun,
    QuestionFacts,
)
from deepsearch_rl.evaluate.explain.lost_points import (
    Estimates,
    LostPoints,
    ScoredAnswer,
    count_lost_points,
    estimate,
    estimate_movement,
)
from deepsearch_rl.evaluate.explain.records import (
    WITHOUT_EVIDENCE,
    CauseReport,
    Ceiling,
    Ceilings,
    ControlFigure,
    Example,
    ExampleItem,
    ExampleSearch,
    ExplainReport,
    GroupReport,
    Movement,
    RunReport,
    Setting,
)
from deepsearch_rl.evaluate.explain.runs import counted_stops
from deepsearch_rl.evaluate.score import Interval, bootstrap_intervals

# Answers to look at, of every cause
EXAMPLES = 3
# Models of the graph by the model that their training began with
TRAINED_FROM = {"sft": "base", "rl": "base", "sft_rl": "sft"}
# Of a model's last text
SHOWN_CHARACTERS = 1000
# For every question whether all items are reached, and the share of them
Shares = list[tuple[float, float]]


def measure_ceilings(
    judged: JudgedRun, seed: int, draws: int, controls: Mapping[str, ControlFigure]
) -> Ceilings:
    """Return the ceilings of a run; those that need a corpus, an index or known searches are None without it."""
    answers: dict[str, list[JudgedAnswer]] = {}
    for answer in judged.answers:
        answers.setdefault(answer.answer.question_id, []).append(answer)

    known = 0
    in_corpus: Shares = []
    by_question: Shares = []
    by_best: Shares = []
    by_agent: Shares = []

    for name, facts in sorted(judged.facts.items()):
        if not facts.evidence:
            continue

        known += 1
        of_question = answers[name]
        searched = [answer for answer in of_question if answer.by_search is not None]
        if facts.in_corpus is not None:
            in_corpus.append(_shares(facts, facts.in_corpus))
        if facts.by_query:
            by_question.append(_shares(facts, facts.by_query[facts.question.question]))
            by_best.append(_shares(facts, _best(facts, searched)))
        if len(searched) == len(of_question):
            by_agent.append(_mean([_shares(facts, answer.shown_items) for answer in searched]))

    def ceiling(shares: Shares) -> Ceiling | None:
        """Return None where some questions have no figure: the mean over the others would be another's."""
        if not shares or len(shares) != known:
            return None
        whole, recall = bootstrap_intervals(np.array(shares), seed, draws)
        return Ceiling(whole=whole, recall=recall)

    return Ceilings(
        n=known,
        in_corpus=ceiling(in_corpus),
        question=ceiling(by_question),
        best_query=ceiling(by_best),
        agent=ceiling(by_agent),
        controls=dict(controls),
    )


def _shares(facts: QuestionFacts, items: Items) -> tuple[float, float]:
    assert facts.evidence is not None
    share = len(items) / len(facts.evidence.items)
    return float(share == 1), share


def _best(facts: QuestionFacts, searched: Iterable[JudgedAnswer]) -> Items:
    """Return the most items that any single query found: the question, a gold title, or one of the agent's."""
    candidates = list(facts.by_query.values())
    for answer in searched:
        candidates.extend(answer.by_search or ())
    return max(candidates, key=len)


def _mean(shares: Sequence[tuple[float, float]]) -> tuple[float, float]:
    whole, recall = np.mean(np.array(shares), axis=0).tolist()
    return whole, recall


def lost_points_of(judged: JudgedRun) -> LostPoints:
    """Return the lost points of a run, which add up to 1 - F1."""
    scored: list[ScoredAnswer] = []
    for judged_answer in judged.answers:
        answer = judged_answer.answer
        without_evidence = judged_answer.findings.without_evidence
        scored.append(
            ScoredAnswer(
                answer.question_id, answer.scores.f1, judged_answer.cause, without_evidence
            )
        )

    return count_lost_points(scored)


def explain_run(
    judged: JudgedRun,
    setting: Setting,
    corpus: Corpus | None,
    seed: int,
    draws: int,
    *,
    model: str = "",
    controls: Mapping[str, ControlFigure] | None = None,
    notes: Sequence[str] = (),
) -> RunReport:
    """Return the report of a judged run; ``draws`` bootstrap resamples of questions make every interval.

    ``model`` is its name where the run's own is another one.
    """
    points = lost_points_of(judged)
    estimates = estimate(points, seed, draws)
    groups = _QuestionGroups(judged, points, seed, draws)
    causes = _cause_reports(judged, estimates)
    lucky = [answer for answer in judged.answers if answer.findings.without_evidence]
    beside = _cause_report(lucky, estimates.without_evidence)
    examples = _examples(judged, [*causes.items(), (WITHOUT_EVIDENCE, beside)])
    evidence = Counter(_evidence_kind(facts) for facts in judged.facts.values())

    return RunReport(
        model=model or judged.run.model,
        dataset=setting.dataset,
        file=judged.run.path.name,
        setting=setting,
        n=len(points.question_ids),
        answers=len(judged.answers),
        evidence=dict(sorted(evidence.items())),
        passages=corpus.passages if corpus else None,
        top_k=judged.top_k,
        f1=estimates.f1,
        right_without_evidence=beside,
        causes=causes,
        types=groups.by(lambda facts: facts.question.metadata.question_type),
        hops=groups.by(lambda facts: hops_of(facts.question)),
        ceilings=measure_ceilings(judged, seed, draws, controls or {}),
        stops=counted_stops(judged.run.answers),
        examples=tuple(examples),
        notes=(*_notes(judged, corpus, evidence), *notes),
    )


def explain_movements(
    runs: Sequence[tuple[RunReport, LostPoints]], seed: int, draws: int
) -> tuple[Movement, ...]:
    """Return what each run changed against the model that it was trained from, where both answer the same questions.

    A run whose model is of another name is compared with the run before it on the same set.
    """
    movements: list[Movement] = []
    earlier: dict[str, list[tuple[RunReport, LostPoints]]] = {}

    for report, points in runs:
        of_set = earlier.setdefault(report.dataset, [])
        start = TRAINED_FROM.get(report.model)
        # Without a known start, any earlier run will do
        candidates = [pair for pair in of_set if start in (None, pair[0].model)]
        of_set.append((report, points))
        if not candidates or candidates[-1][1].question_ids != points.question_ids:
            continue

        before, before_points = candidates[-1]
        change = estimate_movement(points, before_points, seed, draws)
        movements.append(
            Movement(
                dataset=report.dataset,
                model=report.model,
                other=before.model,
                n=report.n,
                f1=change.f1,
                right_without_evidence=change.without_evidence,
                lost=_of_importance(change),
            )
        )

    return tuple(movements)


def without_examples(report: ExplainReport) -> ExplainReport:
    """Return the report with the ids of its examples alone, as a file that is kept with every result."""
    runs: list[RunReport] = []
    for run in report.runs:
        runs.append(run.model_copy(update={"examples": ()}))

    return report.model_copy(update={"runs": tuple(runs)})


def _of_importance(estimates: Estimates) -> dict[Cause, Interval]:
    """Return the causes that some question lost points to."""
    lost: dict[Cause, Interval] = {}
    for cause, interval in estimates.lost.items():
        if interval.mean or interval.low or interval.high:
            lost[cause] = interval

    return lost


def _cause_reports(judged: JudgedRun, estimates: Estimates) -> dict[Cause, CauseReport]:
    reports: dict[Cause, CauseReport] = {}
    for cause, interval in estimates.lost.items():
        answers = [answer for answer in judged.answers if answer.cause is cause]
        if answers:
            reports[cause] = _cause_report(answers, interval)

    return reports


def _cause_report(answers: Sequence[JudgedAnswer], interval: Interval) -> CauseReport:
    details = Counter(answer.detail for answer in answers if answer.detail)
    return CauseReport(
        lost=interval,
        answers=len(answers),
        details=dict(sorted(details.items())),
        examples=tuple(answer.name for answer in _spread(answers)),
    )


def _spread(answers: Sequence[JudgedAnswer]) -> list[JudgedAnswer]:
    """Return some of the answers, spread evenly, so that nobody picks the telling ones."""
    count = min(EXAMPLES, len(answers))
    return [answers[step * len(answers) // count] for step in range(count)]


class _QuestionGroups:
    """Lost points of the questions that share a property."""

    def __init__(self, judged: JudgedRun, points: LostPoints, seed: int, draws: int) -> None:
        self._judged = judged
        self._points = points
        self._seed = seed
        self._draws = draws

    def by(self, property_of: Callable[[QuestionFacts], str]) -> dict[str, GroupReport]:
        """Return a report by the property's value; questions that have none are in no group."""
        names: dict[str, list[str]] = {}
        for name, facts in self._judged.facts.items():
            value = property_of(facts)
            if value:
                names.setdefault(value, []).append(name)

        return {value: self._group(names[value]) for value in sorted(names)}

    def _group(self, names: Iterable[str]) -> GroupReport:
        points = self._points.of(names)
        estimates = estimate(points, self._seed, self._draws)
        return GroupReport(
            n=len(points.question_ids),
            f1=estimates.f1,
            right_without_evidence=estimates.without_evidence,
            lost=_of_importance(estimates),
        )


def _examples(judged: JudgedRun, reports: Iterable[tuple[str, CauseReport]]) -> Iterator[Example]:
    by_name = {answer.name: answer for answer in judged.answers}
    for cause, report in reports:
        for name in report.examples:
            answer = by_name[name]
            yield _example(answer, judged.facts[answer.answer.question_id], cause)


def _example(answer: JudgedAnswer, facts: QuestionFacts, cause: str) -> Example:
    searches = None
    if answer.answer.searches is not None:
        # Where the evidence is unknown, no search shows an item of it
        items_by_search = answer.by_search or (frozenset[int](),) * len(answer.answer.searches)
        example_searches: list[ExampleSearch] = []
        for search, items in zip(answer.answer.searches, items_by_search, strict=True):
            passages = max(len(search.chunk_ids), len(search.passages))
            example_searches.append(
                ExampleSearch(query=search.query, passages=passages, items=len(items))
            )

        searches = tuple(example_searches)

    return Example(
        id=answer.name,
        cause=cause,
        detail=answer.detail,
        question_type=facts.question.metadata.question_type,
        question=facts.question.question,
        golden_answers=facts.question.golden_answers,
        answer=answer.answer.pred,
        last_text=answer.answer.last_text[:SHOWN_CHARACTERS],
        f1=round(answer.answer.scores.f1, 6),
        stop_reason=answer.answer.stop,
        error=answer.answer.error,
        items=_example_items(answer, facts),
        searches=searches,
    )


def _example_items(answer: JudgedAnswer, facts: QuestionFacts) -> tuple[ExampleItem, ...]:
    if facts.evidence is None:
        return ()

    texts = facts.evidence.items
    if facts.evidence.kind == "facts":
        evidence = facts.question.metadata.evidence_list or ()
        texts = tuple(each.fact for each in evidence if each.fact.strip())

    items: list[ExampleItem] = []
    for position, text in enumerate(texts):
        in_corpus = None if facts.in_corpus is None else position in facts.in_corpus
        items.append(
            ExampleItem(text=text, shown=position in answer.shown_items, in_corpus=in_corpus)
        )

    return tuple(items)


def _evidence_kind(facts: QuestionFacts) -> str:
    if facts.evidence is not None:
        return facts.evidence.kind
    return "unanswerable" if is_unanswerable(facts.question) else "unknown"


def _notes(judged: JudgedRun, corpus: Corpus | None, evidence: Mapping[str, int]) -> Iterator[str]:
    """Yield what a reader has to know about the figures."""
    total = len(judged.facts)
    if evidence["answer"]:
        yield (
            f"{evidence['answer']} of {total} questions have no gold evidence: their answer's "
            "string and its aliases stand in, so that a passage counts as evidence that names the "
            "answer as whole words. A passage may name it for another reason, and the first "
            "passage of a chain does not name it."
        )
    if evidence["unknown"]:
        yield (
            f"{evidence['unknown']} of {total} questions have neither gold evidence nor an answer "
            "that could stand in (yes, no): what was found for them is not known."
        )
    if corpus is None:
        yield (
            "Neither an index nor a corpus was given: what the corpus lacks, and why something was "
            "not found, is not known."
        )
    elif corpus.searcher is None:
        yield "No index was given: why something was not found is not known."
    if corpus is not None and corpus.other_results[0]:
        other, tried = corpus.other_results
        yield (
            f"{other} of {tried} queries of the run find other passages in this index than the run "
            "shows: it was made with another index, retriever or reranker, or its search was "
            "broken."
        )
    if any(answer.answer.searches is None for answer in judged.answers):
        yield "Some answers do not say what was searched: what was found for them is not known."
