"""`deepsearch explain` from the files that somebody names to the report."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.evaluate.explain.against import compare_published
from deepsearch_rl.evaluate.explain.explain import (
    DRAWS,
    ExplainedRun,
    combine,
    explain_source,
    opened_once,
)
from deepsearch_rl.evaluate.explain.judging import Corpus
from deepsearch_rl.evaluate.explain.records import AgainstReport, ControlFigure, ExplainReport
from deepsearch_rl.evaluate.explain.run_files import read_run
from deepsearch_rl.evaluate.explain.sources import Input, Source, find_sources

if TYPE_CHECKING:
    from deepsearch_rl.search.searcher import Searcher

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
    draws: int = DRAWS
    controls: Mapping[str, ControlFigure] = field(default_factory=dict)


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
