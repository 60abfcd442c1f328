"""The page of `deepsearch explain`: one HTML file that fetches nothing, in the style of the report's page.

It has no date and no absolute path, so that equal results give an equal page.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepsearch_rl.evaluation.report.page import page_templates
from deepsearch_rl.evaluation.report.plots import inline_svg
from deepsearch_rl.explain.causes import Cause
from deepsearch_rl.explain.figure import COLOURS, LUCKY, RIGHT, lost_points_figure
from deepsearch_rl.explain.report import (
    CEILINGS,
    CONTROLS,
    WITHOUT_EVIDENCE,
    ExplainReport,
    RunReport,
    title_of,
)

TEMPLATES = Path(__file__).with_name("templates")


def render_page(report: ExplainReport) -> str:
    """Return the page as HTML."""
    environment = page_templates(TEMPLATES)
    environment.filters |= {"cause": title_of, "anchor": anchor}
    template = environment.get_template("explain.html")
    return template.render(
        report=report,
        sets=list(_sets(report)),
        colours={**COLOURS, WITHOUT_EVIDENCE: LUCKY, "f1": RIGHT},
        ceilings=CEILINGS,
        controls=CONTROLS,
    )


def _sets(report: ExplainReport) -> Iterator[dict[str, Any]]:
    """Yield what the page shows of every question set, in the order of the runs."""
    for number, name in enumerate(dict.fromkeys(run.dataset for run in report.runs)):
        runs = [run for run in report.runs if run.dataset == name]
        causes = [cause for cause in Cause if any(cause in run.causes for run in runs)]
        title = name or "Questions"
        description = f"Where the points on {title} are lost, a bar per model"
        yield {
            "name": name,
            "title": title,
            "runs": runs,
            "causes": causes,
            "figure": inline_svg(lost_points_figure(runs), f"lost-{number}", description),
            "movements": [each for each in report.movements if each.dataset == name],
            "against": [each for each in report.against if each.dataset == name],
            "notes": list(_notes(runs)),
        }


def _notes(runs: list[RunReport]) -> Iterator[str]:
    """Yield what has to be known about the runs of a set, with the models' names where not all need it."""
    models: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            models.setdefault(note, []).append(run.model)

    for note, names in models.items():
        yield note if len(names) == len(runs) else f"{', '.join(names)}: {note}"


def anchor(*parts: str) -> str:
    """Return the id of an element for these parts, which may hold anything."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(parts)).strip("-")
