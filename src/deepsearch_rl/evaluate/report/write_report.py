"""The report of one profile: tables, metrics, plots and a page."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pydantic import Field

from deepsearch_rl.core.files import (
    atomic_file,
    read_record,
    sha256_file,
    write_json,
)
from deepsearch_rl.core.records import FilterReport, Record, RetrievalReport
from deepsearch_rl.evaluate.explain.explain import DRAWS, explain_evaluations
from deepsearch_rl.evaluate.explain.explanation import without_examples
from deepsearch_rl.evaluate.explain.sources import Searched
from deepsearch_rl.evaluate.f1_row import IfevalScore, ModelEvaluation
from deepsearch_rl.evaluate.published import published_rows
from deepsearch_rl.evaluate.report.page import Report, render_page
from deepsearch_rl.evaluate.report.plots import (
    f1_figure,
    read_rl_run,
    rl_figure,
    save_figure,
)
from deepsearch_rl.evaluate.report.rollouts import (
    read_questions,
    read_runs,
    shown_rollouts,
    turned_questions,
)
from deepsearch_rl.evaluate.table_files import write_table
from deepsearch_rl.evaluate.tables import build_table


class ReportConfig(Record):
    """Section ``report``."""

    comparisons: tuple[tuple[str, str], ...] = Field(
        description="(model, other): the mean of model minus other is reported, paired by question"
    )
    draws: int = Field(ge=100, description="resamples and sign patterns per comparison")
    rollouts: int = Field(ge=0, description="rollouts of every run on the page; 0: none")
    search_index: bool = Field(
        description="search the index again to explain lost points; false: by the rollouts alone"
    )


class Sources(NamedTuple):
    """Where a profile's results are, by model (``rl``: by start; ``questions``: by set).

    ``origins`` names the hub repository and split of a question set, as :func:`published_rows`
    takes them. Without ``searched``, lost points are explained by the rollouts alone.
    """

    evaluate: Mapping[str, Path]
    ifeval: Mapping[str, Path]
    rl: Mapping[str, Path]
    retrieval: Path
    filter: Path | None
    questions: Mapping[str, Path]
    origins: Mapping[str, str] = MappingProxyType({})
    searched: Searched | None = None


def write_report(
    profile: str, sources: Sources, config: ReportConfig, seed: int, out: Path
) -> Report:
    """Write ``f1_table.{json,md,csv}``, ``metrics.json``, ``lost_points.json``, ``plots/`` and ``index.html``.

    Raise ArtifactError where a source is missing or does not fit, and as :func:`build_table`.
    """
    report = _read_report(profile, sources, config, seed)
    table = report.table
    write_json(out / "lost_points.json", without_examples(report.lost).model_dump(mode="json"))
    write_table(table, report.ifeval, out)
    readers_table = table.for_readers
    save_figure(f1_figure(readers_table, readers_table.datasets, columns=2), out / "plots" / "f1")
    save_figure(rl_figure(report.rl), out / "plots" / "rl")

    with atomic_file(out / "index.html") as partial:
        partial.write_text(
            render_page(report, sha256_file(out / "f1_table.json")), encoding="utf-8"
        )

    return report


def _read_report(profile: str, sources: Sources, config: ReportConfig, seed: int) -> Report:
    """Return all that the report shows, read and compared; its errors are those of :func:`write_report`."""
    table = build_table(profile, sources.evaluate, config.comparisons, seed, config.draws)
    ifeval = [
        read_record(folder / "scores.json", IfevalScore) for folder in sources.ifeval.values()
    ]
    evaluations = [
        read_record(folder / "rows.json", ModelEvaluation) for folder in sources.evaluate.values()
    ]
    published = published_rows(table.rows, ifeval, sources.origins)
    table = table.model_copy(update={"published": published})
    questions = read_questions(sources.questions)

    # A model that kept its start has the rollouts of that start: one of the two is enough.
    readers_table = table.for_readers
    turned = turned_questions(readers_table.comparisons)
    runs = tuple(
        read_runs(sources.evaluate, readers_table.reading_order, questions, config.rollouts, turned)
    )
    lost = explain_evaluations(
        sources.evaluate,
        sources.questions,
        sources.searched,
        seed,
        draws=DRAWS,
        # As many as comparisons have: what moved F1 has the same interval there
        movement_draws=config.draws,
    )
    return Report(
        table=table,
        evaluations=tuple(evaluations),
        ifeval=tuple(ifeval),
        rl={start: read_rl_run(folder) for start, folder in sources.rl.items()},
        retrieval=read_record(sources.retrieval, RetrievalReport).root,
        filter=read_record(sources.filter, FilterReport) if sources.filter else None,
        runs=runs,
        rollouts=tuple(shown_rollouts(runs, questions)),
        lost=lost,
    )
