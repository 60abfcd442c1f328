"""The page of `deepsearch explain`: one HTML file that fetches nothing, in the style of the report's page.

It has no date and no absolute path, so that equal results give an equal page.
"""

import re
from pathlib import Path

from deepsearch_rl.evaluate.explain.figure import PAGE_COLOURS, shown_sets
from deepsearch_rl.evaluate.explain.records import (
    CEILINGS,
    CONTROLS,
    ExplainReport,
)
from deepsearch_rl.evaluate.report.page import page_templates

TEMPLATES = Path(__file__).with_name("templates")


def render_page(report: ExplainReport) -> str:
    """Return the page as HTML."""
    environment = page_templates(TEMPLATES)
    environment.filters["anchor"] = anchor
    template = environment.get_template("explain.html")
    return template.render(
        report=report,
        sets=list(shown_sets(report)),
        colours=PAGE_COLOURS,
        ceilings=CEILINGS,
        controls=CONTROLS,
    )


def anchor(*parts: str) -> str:
    """Return the id of an element for these parts, which may hold anything."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(parts)).strip("-")
