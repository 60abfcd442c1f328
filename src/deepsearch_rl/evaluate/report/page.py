"""The report's page: one self-contained HTML file, filled from the templates.

It fetches nothing, follows the system's light or dark scheme and can be read on a phone and by
keyboard. Only the trajectory browser needs its script. The page depends on the report alone (no
date, no commit), so that equal results give an equal page. Figures from generated data are
labelled.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deepsearch_rl.core.records import FilterReport
from deepsearch_rl.evaluate.explain.figure import PAGE_COLOURS, shown_sets
from deepsearch_rl.evaluate.explain.records import CEILINGS, CONTROLS, ExplainReport, title_of
from deepsearch_rl.evaluate.f1_row import (
    F1TableRow,
    IfevalScore,
    ModelEvaluation,
    TypeScore,
    counts_text,
)
from deepsearch_rl.evaluate.report.plots import (
    RlTrainingLog,
    colour_of,
    f1_figure,
    inline_svg,
    rl_figure,
)
from deepsearch_rl.evaluate.report.rollouts import (
    OF_EACH_OUTCOME,
    OF_EACH_TURN,
    RunRollouts,
    ShownRollout,
    pack,
)
from deepsearch_rl.evaluate.table_files import FILTERS, passes
from deepsearch_rl.evaluate.tables import (
    DATASET_ORDER,
    MODEL_ORDER,
    F1Table,
    control_titles,
    in_order,
)
from deepsearch_rl.evaluate.trajectory_statistics import CORRECT, TOKENS_BIN, WRONG

TEMPLATES = Path(__file__).with_name("templates")
# What rollouts are counted by, where the statistics have it, and how far its values are apart
DISTRIBUTIONS = (
    ("turns", "rounds", 1),
    ("searches", "tool_calls", 1),
    ("tokens of the whole conversation", "tokens", TOKENS_BIN),
)
MOST_BINS = 8
# What a template shows of one question set, by the names that the template uses
Shown: TypeAlias = dict[str, Any]


class Report(NamedTuple):
    """Everything that the page shows.

    ``rl`` is keyed by the model that RL started from; ``filter`` is None where a profile trains
    nothing. ``runs`` are in reading order, ``rollouts`` the ones to read of all runs. ``lost`` says
    where the models lose points.
    """

    table: F1Table
    evaluations: tuple[ModelEvaluation, ...]
    ifeval: tuple[IfevalScore, ...]
    rl: Mapping[str, RlTrainingLog]
    retrieval: Mapping[str, Mapping[str, Mapping[str, float]]]
    filter: FilterReport | None
    runs: tuple[RunRollouts, ...]
    rollouts: tuple[ShownRollout, ...]
    lost: ExplainReport


def _page_templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        **FILTERS,
        "anchor": _anchor,
        "cause": title_of,
        "colour": colour_of,
        "counts": counts_text,
        "metric_names": _metric_names,
        "pack": pack,
        "spaced": lambda name: name.replace("_", " "),
    }
    environment.globals |= {"of_each_outcome": OF_EACH_OUTCOME, "of_each_turn": OF_EACH_TURN}
    return environment


def render_explanation(report: ExplainReport) -> str:
    """Return the page of `deepsearch explain` as HTML; like the report's, it has no date and no absolute path."""
    return (
        _page_templates()
        .get_template("explain.html")
        .render(
            report=report,
            sets=list(shown_sets(report)),
            colours=PAGE_COLOURS,
            ceilings=CEILINGS,
            controls=CONTROLS,
        )
    )


def _anchor(*parts: str) -> str:
    """Return the id of an element for these parts, which may hold anything."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(parts)).strip("-")


def render_page(report: Report, table_sha256: str) -> str:
    """Return the page as HTML, without the sections that would be empty.

    ``table_sha256`` is the digest of the ``f1_table.json`` that lies beside the page.
    """
    table = report.table.for_readers
    empty: list[str] = []
    for name in ("rl", "ifeval", "retrieval", "filter"):
        if not getattr(report, name):
            empty.append(name)

    digests: dict[str, str] = {}
    for evaluation in report.evaluations:
        digests.update(evaluation.inputs)

    # Every evaluation has another model under this name
    digests.pop("model", None)
    rl_description = "Reward, F1 and searches by step of every reinforcement learning run"
    f1_plots: list[str] = []
    for name in table.datasets:
        title = f"F1 with 95 % intervals by model on {name}"
        f1_plots.append(inline_svg(f1_figure(table, [name], 1), f"plot-{name}", title))

    main_sets: list[Shown] = []
    for dataset in table.datasets:
        if table.main_rows(dataset):
            main_sets.append(_main_set(table, dataset))

    retrieval: dict[str, Mapping[str, Mapping[str, float]]] = {}
    for name in in_order(report.retrieval, DATASET_ORDER):
        retrieval[name] = report.retrieval[name]

    template = _page_templates().get_template("page.html")
    return template.render(
        report=report,
        table=table,
        kept_start_notes=report.table.kept_start_notes,
        tests=report.table.tests,
        empty=empty,
        f1_plots=f1_plots,
        variants=list(_variant_tables(table)),
        main_sets=main_sets,
        lost_points=list(shown_sets(_without_copies(report))),
        lost_colours=PAGE_COLOURS,
        behaviour=list(_rollout_behaviour(report)),
        rl_plot=inline_svg(rl_figure(report.rl), "plot-rl", rl_description),
        ifeval=_ifeval_scores(report),
        retrieval=retrieval,
        inputs=dict(sorted(digests.items())) | {"f1_table.json": table_sha256},
    )


def _without_copies(report: Report) -> ExplainReport:
    """Return the lost points of the models that the page shows, without those that kept their start."""
    copies = report.table.kept_start
    return report.lost.model_copy(
        update={
            "runs": tuple(run for run in report.lost.runs if run.model not in copies),
            "movements": tuple(move for move in report.lost.movements if move.model not in copies),
        }
    )


def _ifeval_scores(report: Report) -> list[IfevalScore]:
    """Return the scores in training order, without that of a model that kept its start and scores as it did."""
    scores = {score.model: score for score in report.ifeval}
    kept_start = report.table.kept_start
    result: list[IfevalScore] = []

    for model in in_order(scores, MODEL_ORDER):
        start = scores.get(kept_start.get(model, ""))
        if start is None or start != scores[model].model_copy(update={"model": start.model}):
            result.append(scores[model])

    return result


def _variant_tables(table: F1Table) -> Iterator[Shown]:
    """Yield a table for every question set that has variants, beside the first row under the profile's own setting.

    A line is the variant's name, what it changes, and its row of every model.
    """
    for dataset in table.datasets:
        rows = table.rows_of(dataset)
        variants = [row for row in rows if row.variant]
        if not variants:
            continue
        own = [*table.main_rows(dataset), *variants][0]
        models = list(dict.fromkeys(row.model for row in variants))
        by_model_and_kind = {(row.model, row.kind): row for row in rows}
        # Reversed, so that of a variant's rows the first one stays
        first_rows = {row.variant: row for row in reversed(variants)}
        changes = {"": ""}
        for name in sorted(first_rows):
            changes[name] = first_rows[name].changes_from(own)

        lines: list[tuple[str, str, list[F1TableRow | None]]] = []
        for kind, text in changes.items():
            rows = [by_model_and_kind.get((model, kind)) for model in models]
            lines.append((kind or "own setting", text, rows))

        yield {"own": own, "models": models, "lines": lines}


def _main_set(table: F1Table, dataset: str) -> Shown:
    """Return the main rows of a set, those with controls, the first model's score of every type, controls by title.

    Beside them the k of every pass@k.
    """
    rows = table.main_rows(dataset)
    # The first model's scores last, so that they stay
    types: dict[str, TypeScore] = {}
    for row in reversed(rows):
        types.update(row.types)

    controlled = [row for row in rows if row.controls]
    answered = controlled[0].controls if controlled else {}
    return {
        "rows": rows,
        "passes": passes(rows),
        "controlled": controlled,
        "types": dict(sorted(types.items())),
        "controls": control_titles(answered),
    }


def _metric_names(retrievers: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the metrics of retrievers, without the number of questions: by name, then by the number after the @."""
    names = set(itertools.chain.from_iterable(retrievers.values())) - {"n"}
    return sorted(
        names, key=lambda name: (name.partition("@")[0], int(name.partition("@")[2] or 0))
    )


def _rollout_behaviour(report: Report) -> Iterator[Shown]:
    """Yield how the rollouts on every question set went, by the name of the run, without the greedy runs."""
    for dataset in report.table.for_readers.datasets:
        runs: dict[str, RunRollouts] = {}
        for run in report.runs:
            row = run.row
            if row.dataset == dataset and row.kind != "greedy":
                runs[f"{row.model} ({row.variant})" if row.variant else row.model] = run

        if not runs:
            continue
        outcomes: set[str] = set()
        known: set[str] = set()
        for run in runs.values():
            outcomes.update(run.statistics.outcomes)
            known.update(run.figures.figures)

        failures = outcomes - {CORRECT, WRONG}
        yield {
            "dataset": dataset,
            "generated": next(iter(runs.values())).row.generated,
            "runs": runs,
            "outcomes": [CORRECT, WRONG, *sorted(failures)],
            "known": known,
            "distributions": list(_distributions(runs)),
        }


def _distributions(runs: Mapping[str, RunRollouts]) -> Iterator[Shown]:
    """Yield the distributions of rollouts: of every bin, each run's colour and share in [0, 1].

    Where there are many values, neighbours share a bin; a run without any is left out.
    """
    for what, field, step in DISTRIBUTIONS:
        counts: dict[str, Mapping[int, int]] = {}
        for name, run in runs.items():
            count_by_value = getattr(run.figures, field)
            if count_by_value:
                counts[name] = count_by_value

        values = set(itertools.chain.from_iterable(counts.values()))
        if not values:
            continue
        width = bin_width(min(values), max(values), step)
        bins: dict[str, list[tuple[str, float]]] = {}

        for start in range(min(values) // width * width, max(values) + 1, width):
            title = str(start) if width == 1 else f"{start:,} to {start + width - 1:,}"
            bins[title] = []
            for name, of_run in counts.items():
                count = sum(of_run.get(value, 0) for value in range(start, start + width))
                share = count / sum(of_run.values())
                bins[title].append((colour_of(runs[name].row.model), share))

        yield {"what": what, "names": list(counts), "bins": bins}


def bin_width(low: int, high: int, step: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... times ``step`` with ``low`` to ``high`` in eight bins at most."""
    while True:
        for factor in (1, 2, 5):
            width = step * factor
            if high // width - low // width < MOST_BINS:
                return width

        step *= 10
