"""From a run's file to its explanation, and from a profile's evaluations to the report of their lost points."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import distinct
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.records import Question
from deepsearch_rl.data.flashrag import numbered_questions
from deepsearch_rl.evaluate.explain.against import compare_published
from deepsearch_rl.evaluate.explain.explanation import (
    explain_movements,
    explain_run,
    lost_points_of,
)
from deepsearch_rl.evaluate.explain.judging import Corpus, JudgedRun, judge_run
from deepsearch_rl.evaluate.explain.lost_points import LostPoints
from deepsearch_rl.evaluate.explain.records import (
    AgainstReport,
    ControlFigure,
    ExplainReport,
    RunReport,
    Setting,
)
from deepsearch_rl.evaluate.explain.runs import Run, read_run
from deepsearch_rl.evaluate.explain.sources import (
    Input,
    Searched,
    Source,
    evaluated_sources,
    find_sources,
)

if TYPE_CHECKING:
    from deepsearch_rl.search.searcher import Searcher

# Bootstrap resamples, where nobody names another number
DRAWS = 1000
BUILT_HERE = (
    "What other queries would have found is ranked by BM25 over the corpus, built here: the run's own retriever may "
    "find other passages."
)
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


@dataclass(frozen=True, slots=True)
class Options:
    """What somebody names; None is what the run's own folder says, or nothing."""

    questions: Path | None = None
    index: Path | None = None
    chunks: Path | None = None
    corpus: Path | None = None
    retriever: str | None = None
    top_k: int | None = None
    dataset: str | None = None
    against: str | None = None
    seed: int = 0
    draws: int = DRAWS
    controls: Mapping[str, ControlFigure] = field(default_factory=dict)


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

        run = read_run(source.path)
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


def explain_paths(paths: Sequence[Path], options: Options) -> list[ExplainedRun]:
    """Return every run that the paths name, explained.

    Raise ConfigError where options contradict each other, ArtifactError and RecordError where a
    file is missing, does not fit, or is another one than the run was made with.
    """
    options = _settled(options)
    named: set[Input] = set()
    if options.questions is not None:
        named.add("questions")
    if options.index is not None or options.corpus is not None:
        named.add("index")

    explained: list[ExplainedRun] = []
    with ExitStack() as stack:
        open_searcher = opened_once()
        built: Searcher | None = None
        if options.corpus is not None:
            built = stack.enter_context(_built_index(options.corpus, options.seed))

        # An index is opened once, however many runs searched it
        for source in find_sources(paths, options.dataset, named):
            run_source = _as_named(source, options)
            notes: list[str] = []
            corpus = None
            if built is not None:
                corpus = Corpus(built.chunks, built)
                notes.append(BUILT_HERE)
            elif run_source.index is not None:
                searcher = open_searcher(run_source.index, run_source.chunks, run_source.retriever)
                corpus = Corpus(searcher.chunks, searcher)

            run = read_run(run_source.path)
            top_k = options.top_k or run_source.setting.top_k
            explained.append(
                explain_source(run_source, run, corpus, top_k, options.seed, options.draws, notes)
            )

    return _with_distinct_names(explained)


def _settled(options: Options) -> Options:
    """Return the options, a folder that is named as the corpus being the index.

    Raise ConfigError where one option leaves another no use.
    """
    if options.index is not None and options.corpus is not None:
        raise ConfigError("give either --index or --corpus: an index names its passages itself.")
    if options.corpus is not None and options.corpus.is_dir():
        options = replace(options, index=options.corpus, corpus=None)

    if options.chunks is not None and options.index is None:
        raise ConfigError("--chunks is the passage file of an index: name that too (--index).")
    if options.corpus is not None and options.retriever not in (None, "bm25"):
        raise ConfigError(
            f"--retriever {options.retriever}: over the passages of --corpus, BM25 alone is built. Build an index "
            "(`deepsearch retrieve build`) and name it (--index), or leave --retriever out."
        )
    return options


def _as_named(source: Source, options: Options) -> Source:
    """Return the source with everything that the options name in place of what its folder says."""
    setting = source.setting
    if options.dataset is not None:
        setting = setting.model_copy(update={"dataset": options.dataset})
    if options.retriever is not None and setting.retriever is None:
        setting = setting.model_copy(update={"retriever": options.retriever})

    result = replace(
        source,
        setting=setting,
        questions=options.questions or source.questions,
        retriever=options.retriever or source.retriever,
        chunks=options.chunks or source.chunks,
        controls={**source.controls, **options.controls},
    )
    if options.index is None:
        return result
    # The run's own retriever is one of its own index
    return replace(result, index=options.index, chunks=options.chunks, retriever=options.retriever)


def _with_distinct_names(runs: Sequence[ExplainedRun]) -> list[ExplainedRun]:
    """Return the runs with their files behind a model's name that several runs of a question set have."""
    counts = Counter((run.report.dataset, run.report.model) for run in runs)
    renamed: list[ExplainedRun] = []

    for run in runs:
        report = run.report
        if counts[report.dataset, report.model] > 1:
            path = run.source.path.absolute()
            name = f"{report.model} ({path.parent.name}/{path.name})"
            report = report.model_copy(update={"model": name})
        renamed.append(replace(run, report=report))

    return renamed


def report_of(runs: Sequence[ExplainedRun], options: Options) -> ExplainReport:
    """Return the report of explained runs, beside the published row if one is named.

    Raise ConfigError and UnknownNameError where there is no such row of a run's question set.
    """
    report = combine(runs, options.seed, options.draws)
    if options.against is None:
        return report

    against: list[AgainstReport] = []
    for run in runs:
        greedy = read_run(run.source.greedy) if run.source.greedy else None
        against += compare_published(
            run.judged,
            run.report,
            options.against,
            run.choice,
            greedy,
            options.seed,
            options.draws,
        )
    return report.model_copy(update={"against": tuple(against)})


@contextmanager
def _built_index(corpus: Path, seed: int) -> "Iterator[Searcher]":
    """Build BM25 over a corpus file in a temporary folder, with the settings of `deepsearch retrieve build`."""
    # Here, because they load FAISS and SciPy
    from deepsearch_rl.search.build import build_index  # noqa: PLC0415
    from deepsearch_rl.search.manifest import IndexConfig  # noqa: PLC0415
    from deepsearch_rl.search.searcher import open_index  # noqa: PLC0415

    section = load_preset("retrieve").value("index")
    values = {name: section[name] for name in IndexConfig.model_fields}
    config = IndexConfig.model_validate(values | {"encoder": None})

    with tempfile.TemporaryDirectory(prefix="deepsearch-explain-") as folder:
        build_index(corpus, Path(folder, "index"), config, seed)
        yield open_index(Path(folder, "index"))
