"""From the rollouts of one run to its row of the F1 table.

The rollouts are read once; scores, golden answers and counts are all that stays in memory.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from deepsearch_rl.evaluation.scoring.constant import best_constant
from deepsearch_rl.evaluation.scoring.f1_row import ConstantScore, ControlScore, F1Score, F1TableRow, RowKey, TypeScore
from deepsearch_rl.evaluation.scoring.score import QuestionScores, bootstrap_intervals, score_questions
from deepsearch_rl.records import Trajectory

DIGITS = 6


@dataclass(slots=True)
class _RunCounts:
    """Counts of the rollouts that pass through, and the golden answers of their questions."""

    rollouts: int = 0
    rounds: int = 0
    tool_calls: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    golds_of: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def count(self, rollouts: Iterable[Trajectory]) -> Iterator[Trajectory]:
        """Yield the rollouts again, counting them."""
        for rollout in rollouts:
            self.rollouts += 1
            self.rounds += rollout.rounds
            self.tool_calls += rollout.tool_calls
            if rollout.failed:
                self.failures[str(rollout.stop_reason)] += 1
            self.golds_of[rollout.question_id] = rollout.golden_answers
            yield rollout

    def constant(self, scores: QuestionScores) -> ConstantScore:
        """Return the best constant answer to the questions of ``scores``."""
        best = best_constant([self.golds_of[question_id] for question_id in scores.question_ids])
        return ConstantScore(answer=best.answer, f1=round(best.f1, DIGITS), em=round(best.em, DIGITS))


def build_row(key: RowKey, rollouts: Iterable[Trajectory], generated: bool, draws: int) -> F1TableRow:
    """Return the row of a run with search; ``draws`` bootstrap resamples make each interval.

    Raises:
        CheckFailedError: a question has not exactly ``key.samples`` rollouts.
    """
    counts = _RunCounts()
    scores = score_questions(counts.count(rollouts), key.samples)
    of_types = {kind: scores.of_type(kind) for kind in scores.type_names}
    return F1TableRow(
        **key.model_dump(),
        **_f1_score(scores, key.seed, draws).model_dump(),
        acc=_mean(scores, "acc"),
        precision=_mean(scores, "precision"),
        recall=_mean(scores, "recall"),
        mean_rounds=round(counts.rounds / counts.rollouts, DIGITS),
        mean_tool_calls=round(counts.tool_calls / counts.rollouts, DIGITS),
        failures=dict(sorted(counts.failures.items())),
        generated=generated,
        constant=counts.constant(scores),
        types={
            kind: TypeScore(**_f1_score(of_type, key.seed, draws).model_dump(), constant=counts.constant(of_type))
            for kind, of_type in of_types.items()
        },
    )


def build_control(
    rollouts: Iterable[Trajectory], searched: Iterable[Trajectory], samples: int, key: RowKey, draws: int
) -> ControlScore:
    """Return the score of a control run beside that of the run with search (``searched``) on the same questions."""
    counts = _RunCounts()
    scores = score_questions(counts.count(rollouts), samples)
    question_ids = set(scores.question_ids)
    with_search = score_questions((rollout for rollout in searched if rollout.question_id in question_ids), key.samples)
    return ControlScore(
        **_f1_score(scores, key.seed, draws).model_dump(),
        temperature=key.temperature,
        samples=samples,
        searched_f1=_mean(with_search, "f1"),
        failures=dict(sorted(counts.failures.items())),
    )


def _f1_score(scores: QuestionScores, seed: int, draws: int) -> F1Score:
    [interval] = bootstrap_intervals(scores.metrics["f1"][:, None], seed, draws)
    return F1Score(
        n=len(scores.question_ids),
        em=_mean(scores, "em"),
        f1=round(interval.mean, DIGITS),
        f1_low=round(interval.low, DIGITS),
        f1_high=round(interval.high, DIGITS),
    )


def _mean(scores: QuestionScores, metric: str) -> float:
    return round(float(scores.metrics[metric].mean()), DIGITS)
