"""The report's page: one self-contained HTML file, filled from the templates.

It fetches nothing, follows the system's light or dark scheme and can be read on a phone and by keyboard. Only the
trajectory browser needs its script. The page depends on the report alone (no date, no commit), so that equal results
give an equal page. Figures from generated data are labelled.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from deepsearch_rl.evaluation.report.browser import ShownRollout, pack
from deepsearch_rl.evaluation.report.page_rollouts import rollout_behaviour
from deepsearch_rl.evaluation.report.plots import colour_of, f1_figure, inline_svg, rl_figure
from deepsearch_rl.evaluation.report.sources import OF_EACH_OUTCOME, RlRun, RunRollouts
from deepsearch_rl.evaluation.report.tables import (
    CONTROL_TITLES,
    DATASET_ORDER,
    MODEL_ORDER,
    Comparison,
    F1Table,
    Grid,
    f1_grid,
    in_order,
    p_text,
    score_text,
    signed,
)
from deepsearch_rl.evaluation.scoring.f1_row import Control, F1TableRow, IfevalScore, ModelEvaluation, TypeScore
from deepsearch_rl.records import FilterReport

TEMPLATES = Path(__file__).with_name("templates")
FILTER_ORDER = ("trajectories", "f1", "dropped", "rows", "rows_by_type", "searches", "tokens")
"""Figures of the filter in the order of its work: its input, what it dropped, what is left."""
SECTIONS = {
    "f1": "F1 by question set",
    "differences": "Differences between models",
    "types": "By type of question",
    "behaviour": "How rollouts went",
    "trajectories": "Trajectories",
    "controls": "Without search, and with gold passages",
    "rl": "Reinforcement learning",
    "ifeval": "Instruction following",
    "retrieval": "Retrieval quality",
    "filter": "Training data",
    "provenance": "Provenance",
}
"""Template and anchor of each section -> its title, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the page shows.

    ``rl`` is keyed by the model that RL started from; ``filter`` is None where a profile trains nothing. ``runs`` are
    in reading order, ``rollouts`` the ones to read of all runs.
    """

    table: F1Table
    evaluations: tuple[ModelEvaluation, ...]
    ifeval: tuple[IfevalScore, ...]
    rl: Mapping[str, RlRun]
    retrieval: Mapping[str, Mapping[str, Mapping[str, float]]]
    filter: FilterReport | None
    runs: tuple[RunRollouts, ...]
    rollouts: tuple[ShownRollout, ...]


@dataclass(frozen=True, slots=True)
class RetrievalQuality:
    """Scores of every retriever on one question set, by retriever and metric."""

    dataset: str
    generated: bool
    questions: float
    metrics: list[str]
    retrievers: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class VariantTable:
    """The variants of one question set beside the profile's own setting.

    Each line has the variant's name, what it changes, and its row of every model.
    """

    own: F1TableRow
    models: list[str]
    lines: list[tuple[str, str, list[F1TableRow | None]]]


@dataclass(frozen=True, slots=True)
class MainSet:
    """The main figures of a question set; ``controlled`` are the rows of the models that answered under controls.

    ``types`` maps a question type to the scores of the first model that has it, ``controls`` a control to its title.
    """

    rows: list[F1TableRow]
    controlled: list[F1TableRow]
    types: dict[str, TypeScore]
    controls: dict[Control, str]


def page_templates() -> Environment:
    """Return the environment of the page's templates, which escape every text."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "colour": colour_of,
        "p": p_text,
        "pack": pack,
        "score": score_text,
        "signed": signed,
        "spaced": lambda name: name.replace("_", " "),
    }
    environment.globals |= {
        "css": Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        "script": Markup((TEMPLATES / "browser.js").read_text(encoding="utf-8")),
        "of_each_outcome": OF_EACH_OUTCOME,
    }
    return environment


def render_page(report: Report, table_sha256: str) -> str:
    """Return the page as HTML, without the sections that would be empty.

    ``table_sha256`` is the digest of the ``f1_table.json`` that lies beside the page.
    """
    table = report.table
    first_set = table.datasets[0]
    models = in_order((score.model for score in report.ifeval), MODEL_ORDER)
    optional = {"rl": report.rl, "ifeval": report.ifeval, "retrieval": report.retrieval, "filter": report.filter}
    digests = {name: sha256 for evaluation in report.evaluations for name, sha256 in evaluation.inputs.items()}
    inputs = {name: digests[name] for name in sorted(digests.keys() - {"model"})}
    rl_description = "Reward, F1 and searches by step of every reinforcement learning run"
    template = page_templates().get_template("page.html")
    return template.render(
        report=report,
        table=table,
        sections={name: title for name, title in SECTIONS.items() if optional.get(name, True)},
        headline=table.main_rows(first_set),
        gains=[entry for entry in table.comparisons if entry.dataset == first_set and entry.temperature > 0],
        grid=f1_grid(table),
        f1_plots=[
            inline_svg(f1_figure(table, [name], 1), f"plot-{name}", f"F1 with 95 % intervals by model on {name}")
            for name in table.datasets
        ],
        variants=_variant_tables(table),
        differences=_difference_grid(table),
        main_sets=[_main_set(rows) for dataset in table.datasets if (rows := table.main_rows(dataset))],
        behaviour=rollout_behaviour(table, report.runs),
        rl_plot=inline_svg(rl_figure(report.rl), "plot-rl", rl_description),
        ifeval=sorted(report.ifeval, key=lambda score: models.index(score.model)),
        retrieval=[_retrieval(report, dataset) for dataset in in_order(report.retrieval, DATASET_ORDER)],
        filter_figures=list(_filter_figures(report.filter)) if report.filter else [],
        inputs=inputs | {"f1_table.json": table_sha256},
    )


def _variant_tables(table: F1Table) -> list[VariantTable]:
    """Return a table for every question set that has variants."""
    tables: list[VariantTable] = []
    for dataset in table.datasets:
        rows = table.rows_of(dataset)
        variants = [row for row in rows if row.variant]
        if not variants:
            continue
        own = [*table.main_rows(dataset), *variants][0]
        models = list(dict.fromkeys(row.model for row in variants))
        by_model_and_kind = {(row.model, row.kind): row for row in rows}
        first_rows = {row.variant: row for row in reversed(variants)}
        changes = {"": "", **{name: first_rows[name].changes_from(own) for name in sorted(first_rows)}}
        lines = [
            (kind or "own setting", text, [by_model_and_kind.get((model, kind)) for model in models])
            for kind, text in changes.items()
        ]
        tables.append(VariantTable(own, models, lines))
    return tables


def _difference_grid(table: F1Table) -> Grid[Comparison]:
    """Return a line per pair of models that is compared, and a column per run."""
    entries = {
        (f"{entry.model} - {entry.other}", entry.dataset, entry.temperature): entry for entry in table.comparisons
    }
    rows = {(row.dataset, row.temperature): row for row in table.own_rows}
    runs = sorted({key[1:] for key in entries}, key=lambda run: (table.datasets.index(run[0]), -run[1]))
    pairs = dict.fromkeys(pair for pair, *_ in entries)
    return Grid([rows[run] for run in runs], {pair: [entries.get((pair, *run)) for run in runs] for pair in pairs})


def _main_set(rows: list[F1TableRow]) -> MainSet:
    types = {name: score for row in reversed(rows) for name, score in row.types.items()} if rows[0].types else {}
    controlled = [row for row in rows if row.controls]
    controls = controlled[0].controls if controlled else {}
    return MainSet(
        rows,
        controlled,
        {name: types[name] for name in sorted(types)},
        {name: title for name, title in CONTROL_TITLES.items() if name in controls},
    )


def _retrieval(report: Report, dataset: str) -> RetrievalQuality:
    retrievers = report.retrieval[dataset]
    names = {name for scores in retrievers.values() for name in scores} - {"n"}
    return RetrievalQuality(
        dataset=dataset,
        generated=any(row.generated for row in report.table.rows if row.dataset == dataset),
        questions=max((scores.get("n", 0) for scores in retrievers.values()), default=0),
        metrics=sorted(names, key=lambda name: (name.partition("@")[0], int(name.partition("@")[2] or 0))),
        retrievers=retrievers,
    )


def _filter_figures(report: FilterReport) -> Iterator[tuple[str, str]]:
    """Yield name and value of every figure of the filter."""
    values = report.model_dump()
    for name in FILTER_ORDER:
        figures = values[name] if isinstance(values[name], dict) else {"": values[name]}
        for key, value in sorted(figures.items()):
            yield f"{name}, {key}".removesuffix(", ").replace("_", " "), f"{value:g}"
