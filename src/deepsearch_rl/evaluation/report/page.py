"""The report's page: one self-contained HTML file, filled from the templates.

It fetches nothing, follows the system's light or dark scheme and can be read on a phone and by keyboard. Only the
trajectory browser needs its script. The page depends on the report alone (no date, no commit), so that equal results
give an equal page. Figures from generated data are labelled.
"""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from deepsearch_rl.evaluation.report.plots import RlRun, colour_of, f1_figure, inline_svg, rl_figure
from deepsearch_rl.evaluation.report.rollouts import OF_EACH_OUTCOME, RunRollouts, ShownRollout, pack
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
    published_grid,
    published_text,
    score_text,
    signed,
)
from deepsearch_rl.evaluation.scoring.f1_row import F1TableRow, IfevalScore, ModelEvaluation
from deepsearch_rl.records import FilterReport
from deepsearch_rl.trajectories.statistics import CORRECT, TOKENS_BIN, WRONG

TEMPLATES = Path(__file__).with_name("templates")
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
COUNTS = {
    "turns": "rounds",
    "searches": "tool_calls",
    "repeated searches": "repeated_queries",
    "tokens read": "prompt_tokens",
    "tokens written": "completion_tokens",
}
SHARES = {"gold evidence shown": "evidence_shown", "answered without all of it": "answered_without_evidence"}
"""Column titles and the statistics under them; a column that no run has is left out."""
DISTRIBUTIONS = (
    ("turns", "rounds", 1),
    ("searches", "tool_calls", 1),
    ("tokens of the whole conversation", "tokens", TOKENS_BIN),
)
"""What rollouts are counted by, where the statistics have it, and how far its values are apart."""
MOST_BINS = 8
Shown: TypeAlias = dict[str, Any]
"""What a template shows of one question set, by the names that the template uses."""


class Report(NamedTuple):
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
        "published": published_text,
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
    digests.pop("model", None)
    rl_description = "Reward, F1 and searches by step of every reinforcement learning run"
    template = page_templates().get_template("page.html")
    return template.render(
        report=report,
        table=table,
        sections={name: title for name, title in SECTIONS.items() if optional.get(name, True)},
        headline=table.main_rows(first_set),
        gains=[entry for entry in table.comparisons if entry.dataset == first_set and entry.temperature > 0],
        grid=f1_grid(table),
        published=published_grid(table),
        f1_plots=[
            inline_svg(f1_figure(table, [name], 1), f"plot-{name}", f"F1 with 95 % intervals by model on {name}")
            for name in table.datasets
        ],
        variants=list(_variant_tables(table)),
        differences=_difference_grid(table),
        main_sets=[_main_set(rows) for dataset in table.datasets if (rows := table.main_rows(dataset))],
        behaviour=list(_rollout_behaviour(report)),
        rl_plot=inline_svg(rl_figure(report.rl), "plot-rl", rl_description),
        ifeval=sorted(report.ifeval, key=lambda score: models.index(score.model)),
        retrieval=[_retrieval(report, dataset) for dataset in in_order(report.retrieval, DATASET_ORDER)],
        filter_figures=list(_filter_figures(report.filter)) if report.filter else [],
        inputs=dict(sorted(digests.items())) | {"f1_table.json": table_sha256},
    )


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
        first_rows = {row.variant: row for row in reversed(variants)}
        changes = {"": "", **{name: first_rows[name].changes_from(own) for name in sorted(first_rows)}}
        lines = [
            (kind or "own setting", text, [by_model_and_kind.get((model, kind)) for model in models])
            for kind, text in changes.items()
        ]
        yield {"own": own, "models": models, "lines": lines}


def _difference_grid(table: F1Table) -> Grid[Comparison]:
    """Return a line per pair of models that is compared, and a column per run."""
    entries = {
        (f"{entry.model} - {entry.other}", entry.dataset, entry.temperature): entry for entry in table.comparisons
    }
    rows = {(row.dataset, row.temperature): row for row in table.own_rows}
    runs = sorted({key[1:] for key in entries}, key=lambda run: (table.datasets.index(run[0]), -run[1]))
    pairs = dict.fromkeys(pair for pair, *_ in entries)
    return Grid([rows[run] for run in runs], {pair: [entries.get((pair, *run)) for run in runs] for pair in pairs})


def _main_set(rows: list[F1TableRow]) -> Shown:
    """Return the main rows of a set, those with controls, the first model's score of every type, controls by title."""
    types = {name: score for row in reversed(rows) for name, score in row.types.items()}
    controlled = [row for row in rows if row.controls]
    answered = controlled[0].controls if controlled else {}
    controls = {name: title for name, title in CONTROL_TITLES.items() if name in answered}
    return {"rows": rows, "controlled": controlled, "types": dict(sorted(types.items())), "controls": controls}


def _retrieval(report: Report, dataset: str) -> Shown:
    retrievers = report.retrieval[dataset]
    names = {name for scores in retrievers.values() for name in scores} - {"n"}
    return {
        "dataset": dataset,
        "generated": any(row.generated for row in report.table.rows_of(dataset)),
        "questions": max((scores.get("n", 0) for scores in retrievers.values()), default=0),
        "metrics": sorted(names, key=lambda name: (name.partition("@")[0], int(name.partition("@")[2] or 0))),
        "retrievers": retrievers,
    }


def _filter_figures(report: FilterReport) -> Iterator[tuple[str, str]]:
    """Yield name and value of every figure of the filter."""
    for name, value in report.model_dump().items():
        figures = value if isinstance(value, dict) else {"": value}
        for key, figure in sorted(figures.items()):
            yield f"{name}, {key}".removesuffix(", ").replace("_", " "), f"{figure:g}"


def _rollout_behaviour(report: Report) -> Iterator[Shown]:
    """Yield how the rollouts on every question set went, by the name of the run, without the greedy runs."""
    for dataset in report.table.datasets:
        runs = {
            f"{run.row.model} ({run.row.variant})" if run.row.variant else run.row.model: run
            for run in report.runs
            if run.row.dataset == dataset and run.row.kind != "greedy"
        }
        if not runs:
            continue
        failures = {name for run in runs.values() for name in run.statistics.outcomes} - {CORRECT, WRONG}
        outcomes = [CORRECT, WRONG, *sorted(failures)]
        known = {name for run in runs.values() for name in run.figures.figures}
        titles = {title: name for title, name in (COUNTS | SHARES).items() if name in known}
        yield {
            "dataset": dataset,
            "generated": next(iter(runs.values())).row.generated,
            "outcomes": outcomes,
            "counts": {name: [_count(run, outcome) for outcome in outcomes] for name, run in runs.items()},
            "figures": list(titles),
            "means": {name: [_mean_texts(run, figure) for figure in titles.values()] for name, run in runs.items()},
            "distributions": list(_distributions(runs)),
        }


def _count(run: RunRollouts, outcome: str) -> Shown:
    """Return how many rollouts of a run had an outcome, their share in [0, 1], and where the browser shows them."""
    row, counts = run.row, run.statistics.outcomes
    number = counts.get(outcome, 0)
    return {
        "rollouts": number,
        "share": number / sum(counts.values()),
        "address": "#" + urlencode({"model": row.model, "dataset": row.run_name, "outcome": outcome}),
        "label": f"{number} rollouts of {row.model} on {row.run_name}: {outcome.replace('_', ' ')}",
    }


def _mean_texts(run: RunRollouts, name: str) -> tuple[str, str]:
    """Return mean and standard deviation of a figure; empty where unknown."""
    spread = run.figures.figures.get(name)
    if spread is None:
        return "", ""
    if name in SHARES.values():
        return f"{spread.mean:.1%}", ""
    digits = 2 if spread.mean < 100 else 0
    return f"{spread.mean:,.{digits}f}", f"{spread.std:,.{digits}f}"


def _distributions(runs: Mapping[str, RunRollouts]) -> Iterator[Shown]:
    """Yield the distributions of rollouts: of every bin, each run's colour and share in [0, 1].

    Where there are many values, neighbours share a bin; a run without any is left out.
    """
    for what, field, step in DISTRIBUTIONS:
        counts = {name: getattr(run.figures, field) for name, run in runs.items() if getattr(run.figures, field)}
        values = {value for of_run in counts.values() for value in of_run}
        if not values:
            continue
        width = bin_width(min(values), max(values), step)
        bins: dict[str, list[tuple[str, float]]] = {}
        for start in range(min(values) // width * width, max(values) + 1, width):
            title = str(start) if width == 1 else f"{start:,} to {start + width - 1:,}"
            bins[title] = [
                (
                    colour_of(runs[name].row.model),
                    sum(of_run.get(value, 0) for value in range(start, start + width)) / sum(of_run.values()),
                )
                for name, of_run in counts.items()
            ]
        yield {"what": what, "names": list(counts), "bins": bins}


def bin_width(low: int, high: int, step: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... times ``step`` with ``low`` to ``high`` in eight bins at most."""
    widths = (step * factor * 10**decade for decade in itertools.count() for factor in (1, 2, 5))
    return next(width for width in widths if high // width - low // width < MOST_BINS)
