"""The page's tables of how rollouts went: outcomes, means and distributions, over all rollouts of a run."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from deepsearch_rl.evaluation.report.plots import colour_of
from deepsearch_rl.evaluation.report.sources import RunRollouts
from deepsearch_rl.evaluation.report.tables import F1Table
from deepsearch_rl.trajectories.statistics import CORRECT, TOKENS_BIN, WRONG, GroupStatistics

COUNTS = {
    "turns": "rounds",
    "searches": "tool_calls",
    "repeated searches": "repeated_queries",
    "tokens read": "prompt_tokens",
    "tokens written": "completion_tokens",
}
SHARES = {"gold evidence shown": "evidence_shown", "answered without all of it": "answered_without_evidence"}
"""Column titles and the statistics under them; a column that no run has is left out."""
MOST_BINS = 8


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """How many rollouts of a run had one outcome, their share in [0, 1], and where the browser shows them."""

    rollouts: int
    share: float
    address: str
    label: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """Share of rollouts by how many of ``what`` they have: per bin a colour and a share in [0, 1] for each run."""

    what: str
    names: list[str]
    bins: dict[str, list[tuple[str, float]]]


@dataclass(frozen=True, slots=True)
class SetBehaviour:
    """How the rollouts on one question set went; ``counts`` and ``means`` are keyed by the run's name.

    ``means`` are pairs of texts, mean and standard deviation, one per entry of ``figures``; empty where unknown.
    """

    dataset: str
    generated: bool
    outcomes: list[str]
    counts: dict[str, list[OutcomeCount]]
    figures: list[str]
    means: dict[str, list[tuple[str, str]]]
    distributions: list[Distribution]


def rollout_behaviour(table: F1Table, runs: Sequence[RunRollouts]) -> list[SetBehaviour]:
    """Return the behaviour on every question set, without the greedy runs."""
    sampled = [run for run in runs if run.row.kind != "greedy"]
    by_set = {dataset: [run for run in sampled if run.row.dataset == dataset] for dataset in table.datasets}
    return [_set_behaviour(of_set) for of_set in by_set.values() if of_set]


def _set_behaviour(runs: Sequence[RunRollouts]) -> SetBehaviour:
    failures = sorted({name for run in runs for name in run.statistics.outcomes} - {CORRECT, WRONG})
    outcomes = [CORRECT, WRONG, *failures]
    groups = [run.statistics.groups["all"] for run in runs]
    known = {name for group in groups for name in group.figures}
    titles = {title: name for title, name in (COUNTS | SHARES).items() if name in known}
    names = [f"{run.row.model} ({run.row.variant})" if run.row.variant else run.row.model for run in runs]
    colours = [colour_of(run.row.model) for run in runs]
    distributions = [
        _distribution("turns", names, colours, [group.rounds for group in groups], 1),
        _distribution("searches", names, colours, [group.tool_calls for group in groups], 1),
    ]
    if any(group.tokens for group in groups):
        tokens = [group.tokens for group in groups]
        distributions.append(_distribution("tokens of the whole conversation", names, colours, tokens, TOKENS_BIN))
    return SetBehaviour(
        dataset=runs[0].row.dataset,
        generated=runs[0].row.generated,
        outcomes=outcomes,
        counts={name: _outcome_counts(run, outcomes) for name, run in zip(names, runs, strict=True)},
        figures=list(titles),
        means={
            name: [_mean_texts(group, figure) for figure in titles.values()]
            for name, group in zip(names, groups, strict=True)
        },
        distributions=distributions,
    )


def _outcome_counts(run: RunRollouts, outcomes: Sequence[str]) -> list[OutcomeCount]:
    row, counts = run.row, run.statistics.outcomes
    return [
        OutcomeCount(
            rollouts=counts.get(name, 0),
            share=counts.get(name, 0) / sum(counts.values()),
            address="#" + urlencode({"model": row.model, "dataset": row.run_name, "outcome": name}),
            label=f"{counts.get(name, 0)} rollouts of {row.model} on {row.run_name}: {name.replace('_', ' ')}",
        )
        for name in outcomes
    ]


def _mean_texts(group: GroupStatistics, name: str) -> tuple[str, str]:
    spread = group.figures.get(name)
    if spread is None:
        return "", ""
    if name in SHARES.values():
        return f"{spread.mean:.1%}", ""
    digits = 2 if spread.mean < 100 else 0
    return f"{spread.mean:,.{digits}f}", f"{spread.std:,.{digits}f}"


def _distribution(
    what: str, names: Sequence[str], colours: Sequence[str], counts: Sequence[Mapping[int, int]], step: int
) -> Distribution:
    """Return the distribution of values that are ``step`` apart; where there are many, neighbours share a bin.

    ``counts`` are every run's rollouts by value; a run without any is left out.
    """
    runs = [run for run in zip(names, colours, counts, strict=True) if run[2]]
    values = {value for *_, of_run in runs for value in of_run}
    width = bin_width(min(values), max(values), step)
    bins: dict[str, list[tuple[str, float]]] = {}
    for start in range(min(values) // width * width, max(values) + 1, width):
        title = str(start) if width == 1 else f"{start:,} to {start + width - 1:,}"
        bins[title] = [
            (colour, sum(of_run.get(value, 0) for value in range(start, start + width)) / sum(of_run.values()))
            for _, colour, of_run in runs
        ]
    return Distribution(what, [name for name, *_ in runs], bins)


def bin_width(low: int, high: int, step: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... times ``step`` with ``low`` to ``high`` in eight bins at most."""
    widths = (step * factor * 10**decade for decade in itertools.count() for factor in (1, 2, 5))
    return next(width for width in widths if high // width - low // width < MOST_BINS)
