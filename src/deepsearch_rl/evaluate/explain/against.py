"""A run beside a published row: what differs, how far that moves the score, and what nobody can say.

What can be computed from the run's own answers is computed: other metrics, some of the questions,
one answer per question, greedy answers where they are at hand. Everything else that differs, or
that a source does not say, is listed as unknown. Nothing is guessed, and the effects are not added
up: they overlap.

Axes: Q questions in the order of their ids, D bootstrap draws.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.answers import METRICS
from deepsearch_rl.core.errors import CheckFailedError, ConfigError, look_up
from deepsearch_rl.core.records import SERVER_FAILURES
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.explain.corpus import is_unanswerable
from deepsearch_rl.evaluate.explain.judging import JudgedRun
from deepsearch_rl.evaluate.explain.records import (
    AgainstReport,
    Recomputed,
    RunReport,
    Setting,
    SettingDifference,
)
from deepsearch_rl.evaluate.explain.runs import Answer, Run
from deepsearch_rl.evaluate.published import (
    Normalisation,
    PublishedScores,
    read_published,
)
from deepsearch_rl.evaluate.score import Interval, bootstrap_intervals

# Questions that many publications score, the first ones of a development set
FIRST = 200
# What a recomputed score is called; :func:`_unknown` looks for these among them
FIRST_ANSWERS = "one answer per question, the first"
GREEDY_ANSWERS = "greedy answers"
NORMALISATIONS: dict[Normalisation, str] = {
    "squad": "SQuAD: lower case, no punctuation, no articles"
}
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """The scores of a run per question, by metric, in the order of ``ids``."""

    ids: tuple[str, ...]
    metrics: Mapping[str, Values]

    @property
    def f1(self) -> Values:
        """F1 of every question."""
        return self.metrics["f1"]

    def among(self, names: Set[str]) -> NDArray[np.bool_]:
        """Return which of the questions have one of these ids."""
        return np.array([name in names for name in self.ids])


def compare_published(
    judged: JudgedRun,
    report: RunReport,
    name: str,
    choice: str | None,
    greedy: Run | None,
    seed: int,
    draws: int,
) -> list[AgainstReport]:
    """Return the run beside every published row of a name and of the run's question set.

    ``choice`` says which questions of its file the run answers, None where no file was given. Raise
    ConfigError where the run's question set is not known, UnknownNameError where it has no row of
    that name.
    """
    blocks = _blocks_of(report.setting.dataset, name)
    scored = score_run(judged.run.answers)
    reports: list[AgainstReport] = []

    for block in blocks:
        settings = tuple(_settings(report, block, choice))
        recomputed = tuple(_recompute(judged, scored, block, greedy, seed, draws))
        reports.append(
            AgainstReport(
                model=report.model,
                dataset=report.dataset,
                published_model=name,
                source=block.source,
                metric=block.metric,
                score=block.scores[name],
                comparable=all(line.verdict == "same" for line in settings),
                settings=settings,
                recomputed=recomputed,
                unknown=tuple(_unknown(settings, recomputed)),
            )
        )

    return reports


def _blocks_of(dataset: str, name: str) -> list[PublishedScores]:
    if not dataset:
        raise ConfigError(
            "--against needs the run's question set; name it, e.g. --dataset hotpotqa."
        )

    by_name: dict[str, list[PublishedScores]] = {}
    for block in read_published():
        if block.task.dataset == dataset:
            for model in block.scores:
                by_name.setdefault(model, []).append(block)

    return look_up(f"published row of {dataset}", name, by_name)


def score_run(answers: Sequence[Answer]) -> ScoredRun:
    """Return the mean scores of every question's answers."""
    rows: dict[str, list[Sequence[float]]] = {}
    for answer in answers:
        rows.setdefault(answer.question_id, []).append(answer.scores)

    ids = tuple(sorted(rows))
    values_QM = np.array([np.mean(np.array(rows[name]), axis=0) for name in ids])
    return ScoredRun(ids, dict(zip(METRICS, values_QM.T, strict=True)))


# What differs


def _settings(
    report: RunReport, block: PublishedScores, choice: str | None
) -> Iterator[SettingDifference]:
    here = report.setting
    task = block.task
    answering = block.answering
    coverage = report.ceilings.in_corpus

    yield _split_line(here, task.questions)
    yield _line("number of questions", report.n, task.n)
    yield _line("choice of questions", choice, answering.choice)
    yield _line("passages per search", here.top_k, task.top_k)
    yield _line("prompt", here.prompt, task.prompt)
    yield _line("corpus", here.corpus, task.corpus)
    yield _line(
        "questions whose evidence the corpus has",
        f"{coverage.whole.mean:.3f}" if coverage else None,
        None,
    )
    yield _line("passage length", _length(here.chunk_size), _length(task.chunk_size))
    yield _line("retriever", here.retriever, task.retriever)
    yield _line("temperature", _number(here.temperature), _number(answering.temperature))
    yield _line("answers per question", here.samples, answering.samples)
    yield _line("metric", "f1", block.metric)
    published = NORMALISATIONS[answering.normalisation] if answering.normalisation else None
    yield _line("normalisation", NORMALISATIONS["squad"], published)


def _split_line(here: Setting, published: str | None) -> SettingDifference:
    """Return the line of the split: the source of the questions is not known here, the name of the split is."""
    own = "generated questions" if here.generated else here.split
    line = _line("split", own, published)
    if here.generated:
        # No publication has these questions
        return line.model_copy(update={"verdict": "differs"})
    if published is None or here.split is None:
        return line
    same_split = published.rpartition("/")[2] == here.split
    return line.model_copy(update={"verdict": "unknown" if same_split else "differs"})


def _line(what: str, here: object, published: object) -> SettingDifference:
    verdict = "same" if here == published else "differs"
    return SettingDifference(
        what=what,
        here=None if here is None else str(here),
        published=None if published is None else str(published),
        verdict="unknown" if here is None or published is None else verdict,
    )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def _length(chunk_size: int | None) -> str | None:
    if chunk_size is None:
        return None
    return f"at most {chunk_size} tokens" if chunk_size else "passages as they come"


# How far it moves the score


def _recompute(
    judged: JudgedRun,
    scored: ScoredRun,
    block: PublishedScores,
    greedy: Run | None,
    seed: int,
    draws: int,
) -> Iterator[Recomputed]:
    n = len(scored.ids)

    def whole(what: str, metric: str, values_Q: Values) -> Recomputed:
        [change] = bootstrap_intervals((values_Q - scored.f1)[:, None], seed, draws)
        score = float(values_Q.mean())
        return Recomputed(what=what, metric=metric, n=n, score=score, change=change)

    def some(what: str, chosen: set[str]) -> Recomputed:
        chosen_Q = scored.among(chosen)
        change = subset_change(scored.f1, chosen_Q, seed, draws)
        score = float(scored.f1[chosen_Q].mean())
        return Recomputed(what=what, metric="f1", n=int(chosen_Q.sum()), score=score, change=change)

    for metric in ("em", "acc"):
        mark = ", the published one" if metric == block.metric else ""
        yield whole(f"another metric{mark}", metric, scored.metrics[metric])
    yield whole("right answers that the metric missed count", "f1", _forgiven(judged, scored))

    in_order = list(judged.facts)
    for count in sorted({FIRST, block.task.n or FIRST}):
        if count < n:
            yield some(_first_questions(count), set(in_order[:count]))

    answerable: set[str] = set()
    covered: set[str] = set()
    for name, facts in judged.facts.items():
        if not is_unanswerable(facts.question):
            answerable.add(name)
        if facts.is_covered:
            covered.add(name)

    if 0 < len(answerable) < n:
        yield some("answerable questions alone", answerable)
    if 0 < len(covered) < n:
        yield some("questions whose evidence the corpus has", covered)

    if judged.run.samples > 1:
        first = score_run([answer for answer in judged.run.answers if answer.sample == 0])
        # Otherwise the two means are over other questions
        if first.ids == scored.ids:
            yield whole(FIRST_ANSWERS, "f1", first.f1)
    yield from _without_failures(judged, scored, seed, draws)
    if greedy is not None:
        yield _greedy(scored, greedy, seed, draws)


def _first_questions(count: int | str | None) -> str:
    return f"the first {count} questions"


def _forgiven(judged: JudgedRun, scored: ScoredRun) -> Values:
    """Return F1 per question with 1 for every answer that was right and lost points to the metric."""
    values: dict[str, list[float]] = {}
    for answer in judged.answers:
        f1 = 1.0 if answer.cause is Cause.METRIC else answer.answer.scores.f1
        values.setdefault(answer.answer.question_id, []).append(f1)

    return np.array([fmean(values[name]) for name in scored.ids])


def _without_failures(
    judged: JudgedRun, scored: ScoredRun, seed: int, draws: int
) -> Iterator[Recomputed]:
    """Yield the score without the answers that a server failed, where there are any."""
    answers = [answer for answer in judged.run.answers if answer.stop not in SERVER_FAILURES]
    if not answers or len(answers) == len(judged.run.answers):
        return

    served = score_run(answers)
    place = {name: row for row, name in enumerate(scored.ids)}
    # Questions without any served answer keep their score and are not chosen below
    values_Q = scored.f1.copy()
    for name, f1 in zip(served.ids, served.f1.tolist(), strict=True):
        values_Q[place[name]] = f1

    chosen_Q = scored.among(set(served.ids))
    change = subset_change(scored.f1, chosen_Q, seed, draws, values_Q)
    yield Recomputed(
        what="without answers that a server failed",
        metric="f1",
        n=len(served.ids),
        score=float(served.f1.mean()),
        change=change,
    )


def _greedy(scored: ScoredRun, greedy: Run, seed: int, draws: int) -> Recomputed:
    """Return greedy minus sampled answers on the questions that both answer."""
    other = score_run(greedy.answers)
    sampled = dict(zip(scored.ids, scored.f1.tolist(), strict=True))
    values: list[float] = []
    differences: list[float] = []
    for name, f1 in zip(other.ids, other.f1.tolist(), strict=True):
        if name in sampled:
            values.append(f1)
            differences.append(f1 - sampled[name])

    n = len(values)
    if not n:
        raise CheckFailedError(f"{greedy.path} answers none of the run's questions.")

    [change] = bootstrap_intervals(np.array(differences)[:, None], seed, draws)
    score = float(np.mean(values))
    return Recomputed(what=GREEDY_ANSWERS, metric="f1", n=n, score=score, change=change)


def subset_change(
    values_Q: Values,
    chosen_Q: NDArray[np.bool_],
    seed: int,
    draws: int,
    new_Q: Values | None = None,
) -> Interval:
    """Return the mean over the chosen questions minus the mean over all, with its 95 % bootstrap interval.

    The questions are resampled together, so that the two means move together; a resample without
    any chosen question is left out. ``new_Q`` are the values of the chosen questions where they
    differ from ``values_Q``.
    """
    n = len(values_Q)
    new_Q = values_Q if new_Q is None else new_Q
    chosen = chosen_Q.astype(np.float64)
    generator = np.random.default_rng(seed)
    changes_D: list[float] = []

    for _ in range(draws):
        counts_Q = np.bincount(generator.integers(0, n, n, dtype=np.int32), minlength=n)
        # Counts in place of drawn questions: a resample is then two products
        drawn = float(counts_Q @ chosen)
        if drawn:
            mean = float(counts_Q @ (chosen * new_Q)) / drawn
            changes_D.append(mean - float(counts_Q @ values_Q) / n)

    change = float(new_Q[chosen_Q].mean() - values_Q.mean())
    low, high = np.percentile(changes_D, (2.5, 97.5)).tolist() if changes_D else (change, change)
    return Interval(mean=change, low=low, high=high)


def _unknown(
    settings: Sequence[SettingDifference], recomputed: Sequence[Recomputed]
) -> Iterator[str]:
    """Yield what is not the same and whose effect the run cannot show."""
    done: set[str] = set()
    metrics: set[str] = set()
    for line in recomputed:
        done.add(line.what)
        metrics.add(line.metric)

    # By setting and its published value: the recomputed score that shows its effect
    shown_by = {
        ("temperature", "0"): GREEDY_ANSWERS,
        ("answers per question", "1"): FIRST_ANSWERS,
    }

    for line in settings:
        if line.verdict == "same":
            continue
        if line.what == "metric" and line.published in metrics:
            continue
        if line.what == "number of questions" and _first_questions(line.published) in done:
            continue
        if line.what == "choice of questions" and f"{line.published} questions" in done:
            continue
        if shown_by.get((line.what, line.published or "")) in done:
            continue
        yield line.what
