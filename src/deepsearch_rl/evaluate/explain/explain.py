"""From a run's file to its explanation, and from a profile's evaluations to the report of their lost points."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deepsearch_rl.core.files import distinct
from deepsearch_rl.core.records import Question
from deepsearch_rl.data.flashrag import numbered_questions
from deepsearch_rl.evaluate.explain.explanation import (
    explain_movements,
    explain_run,
    lost_points_of,
)
from deepsearch_rl.evaluate.explain.judging import Corpus, JudgedRun, judge_run
from deepsearch_rl.evaluate.explain.lost_points import LostPoints
from deepsearch_rl.evaluate.explain.records import ExplainReport, RunReport, Setting
from deepsearch_rl.evaluate.explain.runs import Run, read_rollouts
from deepsearch_rl.evaluate.explain.sources import Searched, Source, evaluated_sources

if TYPE_CHECKING:
    from deepsearch_rl.search.searcher import Searcher

# Bootstrap resamples, where nobody names another number
DRAWS = 1000
# Opens an index with its passage file and one of its retrievers
OpenSearcher = Callable[[Path, Path | None, str | None], "Searcher"]


@dataclass(frozen=True, slots=True)
class ExplainedRun:
    """A run with all that further questions about it need."""

    source: Source
    judged: JudgedRun
    points: LostPoints
    report: RunReport
    # Which questions of the file were answered; None where no file was given
    choice: str | None


def explain_evaluations(
    evaluations: Mapping[str, Path],
    questions: Mapping[str, Path],
    searched: Searched | None,
    seed: int,
    draws: int,
    movement_draws: int,
) -> ExplainReport:
    """Return where the evaluated models of a profile lose points, on every question set, and what training moved.

    ``evaluations`` are folders by model, ``questions`` files by set. Where ``searched`` names the
    indexes, the report also says what the corpus lacks and what other queries would have found.
    Intervals of what a run lost have ``draws`` resamples, those of what training moved
    ``movement_draws``.
    """
    open_searcher = opened_once()
    explained: list[ExplainedRun] = []
    for source in evaluated_sources(evaluations, questions, searched):
        corpus = None
        if source.index is not None:
            searcher = open_searcher(source.index, source.chunks, source.retriever)
            corpus = Corpus(searcher.chunks, searcher)

        run = read_rollouts(source.path)
        explained.append(explain_source(source, run, corpus, source.setting.top_k, seed, draws))

    return combine(explained, seed, movement_draws)


def combine(runs: Sequence[ExplainedRun], seed: int, draws: int) -> ExplainReport:
    """Return the report of explained runs, with what training changed, by ``draws`` resamples."""
    pairs = [(run.report, run.points) for run in runs]
    return ExplainReport(
        runs=tuple(run.report for run in runs),
        movements=explain_movements(pairs, seed, draws),
    )


def explain_source(
    source: Source,
    run: Run,
    corpus: Corpus | None,
    top_k: int | None,
    seed: int,
    draws: int,
    notes: Sequence[str] = (),
) -> ExplainedRun:
    """Return a run's explanation; ``top_k`` passages per query, or as many as its largest search has.

    Raise ArtifactError where the run does not fit its questions or its corpus.
    """
    questions = _read_questions(source.questions) if source.questions else {}
    depth = top_k or run.top_k
    judged = judge_run(run, questions, corpus, depth)
    answered = len(judged.facts)
    all_notes = [*source.notes, *notes]
    # A part of a set is another sample of questions, with another score
    if questions and answered < len(questions):
        all_notes.append(f"{answered} of the {len(questions)} questions of the file were answered.")

    report = explain_run(
        judged,
        _setting(source, run, depth),
        corpus,
        seed,
        draws,
        model=source.model,
        controls=source.controls,
        notes=all_notes,
    )
    choice = choice_of(list(judged.facts), list(questions)) if questions else None
    return ExplainedRun(source, judged, lost_points_of(judged), report, choice)


def choice_of(answered: Sequence[str], in_file: Sequence[str]) -> str:
    """Return which questions of a file were answered, both in the order of the file."""
    count = len(answered)
    if count == len(in_file):
        return "all"
    if answered == in_file[:count]:
        return f"the first {count}"
    return f"{count} of {len(in_file)}, not the first ones"


def _read_questions(path: Path) -> dict[str, Question]:
    return {each.id: each for each in distinct(lambda: numbered_questions(path), path)}


def opened_once() -> OpenSearcher:
    """Return what opens an index and keeps it open for the runs that follow."""
    opened: dict[tuple[Path, str | None], Searcher] = {}

    def open_searcher(path: Path, chunks: Path | None, retriever: str | None) -> "Searcher":
        # Here, because it loads FAISS
        from deepsearch_rl.search.searcher import open_index  # noqa: PLC0415

        key = path, retriever
        if key not in opened:
            opened[key] = open_index(path, chunks, retriever)
        return opened[key]

    return open_searcher


def _setting(source: Source, run: Run, top_k: int) -> Setting:
    """Return the setting with what the run itself says where its folder says nothing."""
    setting = source.setting
    own = {
        "prompt": run.prompt,
        "temperature": run.temperature,
        "samples": run.samples,
        "top_k": top_k or None,
    }
    missing: dict[str, object] = {}
    for name, value in own.items():
        if getattr(setting, name) is None:
            missing[name] = value

    return setting.model_copy(update=missing)
