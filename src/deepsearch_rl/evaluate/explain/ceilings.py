"""What a score could be: evidence that the corpus has, that single queries find, and that the agent found.

Every figure is over the questions whose evidence is known, and is given twice: the share of
questions of which every gold item is reached, and the mean share of a question's items.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from deepsearch_rl.evaluate.explain.judging import Items, JudgedAnswer, JudgedRun, QuestionFacts
from deepsearch_rl.evaluate.explain.records import Ceiling, Ceilings, ControlFigure
from deepsearch_rl.evaluate.score import bootstrap_intervals

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
