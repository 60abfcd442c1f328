"""`deepsearch explain` from files to the report."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import distinct
from deepsearch_rl.core.records import Question
from deepsearch_rl.corpora.reading.flashrag import numbered_questions
from deepsearch_rl.explain.against import compare_published
from deepsearch_rl.explain.explanation import explain_movements, explain_run, lost_points_of
from deepsearch_rl.explain.judging import Corpus, JudgedRun, judge_run
from deepsearch_rl.explain.lost_points import LostPoints
from deepsearch_rl.explain.report import (
    AgainstReport,
    ControlFigure,
    ExplainReport,
    RunReport,
    Setting,
)
from deepsearch_rl.explain.runs import Run, read_run
from deepsearch_rl.explain.sources import Source, find_sources
from deepsearch_rl.presets import load_preset

if TYPE_CHECKING:
    from deepsearch_rl.retrieval.search.searcher import Searcher

BUILT_HERE = (
    "What other queries would have found is ranked by BM25 over the corpus, built here: the run's own retriever may "
    "find other passages."
)


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
    draws: int = 1000
    controls: Mapping[str, ControlFigure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExplainedRun:
    """A run with all that further questions about it need."""

    source: Source
    judged: JudgedRun
    points: LostPoints
    report: RunReport
    questions_in_file: int


def explain_paths(paths: Sequence[Path], options: Options) -> list[ExplainedRun]:
    """Return every run that the paths name, explained.

    Raise ConfigError where options contradict each other, ArtifactError and RecordError where a
    file is missing, does not fit, or is another one than the run was made with.
    """
    if options.index is not None and options.corpus is not None:
        raise ConfigError("give either --index or --corpus: an index names its passages itself.")

    explained: list[ExplainedRun] = []
    with ExitStack() as stack:
        open_searcher = _searchers(stack, options.seed)
        for source in find_sources(paths, options.dataset):
            explained.append(_explain(source, options, open_searcher))

    return _with_distinct_names(explained)


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
    """Return the report of explained runs, with what training changed, and beside the published row if one is named.

    Raise ConfigError and UnknownNameError where there is no such row of a run's question set.
    """
    pairs = [(run.report, run.points) for run in runs]
    against: list[AgainstReport] = []

    for run in runs if options.against is not None else ():
        greedy = read_run(run.source.greedy) if run.source.greedy else None
        against += compare_published(
            run.judged,
            run.report,
            options.against or "",
            run.questions_in_file,
            greedy,
            options.seed,
            options.draws,
        )

    return ExplainReport(
        runs=tuple(run.report for run in runs),
        movements=explain_movements(pairs, options.seed, options.draws),
        against=tuple(against),
    )


OpenSearcher = Callable[[Path, Path | None, str | None], "Searcher"]


def _explain(source: Source, options: Options, open_searcher: OpenSearcher) -> ExplainedRun:
    run = read_run(source.path)
    questions_path = options.questions or source.questions
    questions = _read_questions(questions_path) if questions_path else {}
    corpus, notes = _open_corpus(source, options, open_searcher)

    top_k = options.top_k or source.setting.top_k or run.top_k
    judged = judge_run(run, questions, corpus, top_k)
    answered = len(judged.facts)
    if questions and answered < len(questions):
        notes.append(f"{answered} of the {len(questions)} questions of the file were answered.")

    report = explain_run(
        judged,
        _setting(source, run, top_k, options),
        corpus,
        options.seed,
        options.draws,
        model=source.model,
        controls={**source.controls, **options.controls},
        notes=(*source.notes, *notes),
    )
    return ExplainedRun(source, judged, lost_points_of(judged), report, len(questions))


def _read_questions(path: Path) -> dict[str, Question]:
    return {each.id: each for each in distinct(lambda: numbered_questions(path), path)}


def _open_corpus(
    source: Source, options: Options, open_searcher: OpenSearcher
) -> tuple[Corpus | None, list[str]]:
    """Return where the passages are, as named or else as the run's folder has them, and what to say about it."""
    if options.corpus is not None:
        searcher = open_searcher(options.corpus, None, None)
        return Corpus(searcher.chunks, searcher), [BUILT_HERE]

    index = options.index or source.index
    if index is None:
        return None, []
    is_own = options.index is None
    chunks = options.chunks or (source.chunks if is_own else None)
    retriever = options.retriever or (source.retriever if is_own else None)
    searcher = open_searcher(index, chunks, retriever)
    return Corpus(searcher.chunks, searcher), []


def _searchers(stack: ExitStack, seed: int) -> OpenSearcher:
    """Return what opens an index, or builds one over a corpus file, once for all runs."""
    opened: dict[tuple[Path, str | None], Searcher] = {}

    def open_searcher(path: Path, chunks: Path | None, retriever: str | None) -> "Searcher":
        # Here, because it loads FAISS
        from deepsearch_rl.retrieval.search.searcher import open_index  # noqa: PLC0415

        key = path, retriever
        if key not in opened:
            opened[key] = (
                open_index(path, chunks, retriever)
                if path.is_dir()
                else stack.enter_context(_built_index(path, seed))
            )
        return opened[key]

    return open_searcher


@contextmanager
def _built_index(corpus: Path, seed: int) -> "Iterator[Searcher]":
    """Build BM25 over a corpus file in a temporary folder, with the settings of `deepsearch retrieve build`."""
    # Here, because they load FAISS and SciPy
    from deepsearch_rl.indexing.build import build_index  # noqa: PLC0415
    from deepsearch_rl.retrieval.search.manifest import IndexConfig  # noqa: PLC0415
    from deepsearch_rl.retrieval.search.searcher import open_index  # noqa: PLC0415

    section = load_preset("retrieve").value("index")
    values = {name: section[name] for name in IndexConfig.model_fields}
    config = IndexConfig.model_validate(values | {"encoder": None})

    with tempfile.TemporaryDirectory(prefix="deepsearch-explain-") as folder:
        build_index(corpus, Path(folder, "index"), config, seed)
        yield open_index(Path(folder, "index"))


def _setting(source: Source, run: Run, top_k: int, options: Options) -> Setting:
    """Return the setting with what the run itself says where its folder says nothing."""
    setting = source.setting
    own = {
        "prompt": run.prompt,
        "temperature": run.temperature,
        "samples": run.samples,
        "top_k": top_k or None,
        "retriever": options.retriever,
    }
    missing = {name: value for name, value in own.items() if getattr(setting, name) is None}
    if options.dataset is not None:
        missing["dataset"] = options.dataset
    return setting.model_copy(update=missing)
