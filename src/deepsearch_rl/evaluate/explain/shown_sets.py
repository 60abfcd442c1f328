"""What a page shows of lost points, by question set."""

from collections.abc import Iterator, Sequence
from typing import Any

from deepsearch_rl.evaluate.explain.figure import (
    COLOURS,
    LUCKY,
    RIGHT,
    causes_of,
    lost_points_figure,
)
from deepsearch_rl.evaluate.explain.records import WITHOUT_EVIDENCE, ExplainReport, RunReport
from deepsearch_rl.evaluate.report.plots import inline_svg

# The colours of the bars' parts
PAGE_COLOURS = {**COLOURS, WITHOUT_EVIDENCE: LUCKY, "f1": RIGHT}


def shown_sets(report: ExplainReport) -> Iterator[dict[str, Any]]:
    """Yield what the page shows of every question set, in the order of the runs."""
    for number, name in enumerate(dict.fromkeys(run.dataset for run in report.runs)):
        runs = [run for run in report.runs if run.dataset == name]
        title = name or "Questions"
        description = f"Where the points on {title} are lost, a bar per model"
        yield {
            "name": name,
            "title": title,
            "runs": runs,
            "causes": causes_of(runs),
            "figure": inline_svg(lost_points_figure(runs), f"lost-{number}", description),
            "movements": [each for each in report.movements if each.dataset == name],
            "against": [each for each in report.against if each.dataset == name],
            "notes": list(_notes(runs)),
        }


def _notes(runs: Sequence[RunReport]) -> Iterator[str]:
    """Yield what has to be known about the runs of a set, with the models' names where not all need it."""
    models: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            models.setdefault(note, []).append(run.model)

    for note, names in models.items():
        yield note if len(names) == len(runs) else f"{', '.join(names)}: {note}"
