"""The figure of lost points: a bar per model, from F1 on the left to the last cause on the right."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from deepsearch_rl.evaluate.explain.causes import TITLES, Cause
from deepsearch_rl.evaluate.explain.records import WITHOUT_EVIDENCE, ExplainReport, RunReport
from deepsearch_rl.evaluate.report.plots import FAINT, PANEL_INCHES, STYLE, inline_svg

COLOURS: dict[Cause, str] = {
    Cause.NOT_IN_CORPUS: "#6b4f3a",
    Cause.NEVER_SEARCHED: "#a3522b",
    Cause.BAD_QUERY: "#d97b29",
    Cause.INDEX_MISSES: "#e6ab52",
    Cause.NOT_FOUND: "#e6c98f",
    Cause.PARTLY_FOUND: "#d9c22e",
    Cause.NOT_USED: "#4f8fd6",
    Cause.REFUSED: "#8b9fe0",
    Cause.METRIC: "#8f5bb5",
    Cause.CUT_OFF: "#c2538a",
    Cause.INFRASTRUCTURE: "#b23b3b",
    Cause.UNANSWERABLE: "#5d7f8c",
    Cause.UNKNOWN: "#a9adb3",
}
RIGHT = "#12876a"
LUCKY = "#74c2ab"
BAR_INCHES = 0.34
# Which fit, as the whole figure does, on a phone
LEGEND_COLUMNS = 2
# A part narrower than this share has no figure in it
LABELLED = 0.06
# On light colours, in either scheme of the page
DARK_TEXT = "#101214"


def causes_of(runs: Iterable[RunReport]) -> list[Cause]:
    """Return the causes to which one of the runs lost points, in reading order."""
    causes: set[Cause] = set()
    for run in runs:
        causes.update(run.causes)

    return sorted(causes, key=list(Cause).index)


def lost_points_figure(runs: Sequence[RunReport]) -> Figure:
    """Draw a bar for each run: F1, of which what was right without evidence is paler, then every cause."""
    causes = causes_of(runs)
    legend_lines = -(-(len(causes) + 2) // LEGEND_COLUMNS)
    height = 0.75 + BAR_INCHES * len(runs) + 0.19 * legend_lines

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PANEL_INCHES[0], height), layout="constrained")
        panel = figure.subplots()

        # matplotlib counts bars from below, and the first run is read first
        for place, run in enumerate(reversed(runs)):
            start = 0.0
            lucky = run.right_without_evidence.lost.mean
            parts = [(RIGHT, run.f1.mean - lucky), (LUCKY, lucky)]
            for cause in causes:
                cost = run.causes[cause].lost.mean if cause in run.causes else 0.0
                parts.append((COLOURS[cause], cost))

            for colour, width in parts:
                panel.barh(place, width, left=start, height=0.7, color=colour, linewidth=0)
                if width >= LABELLED:
                    label = f"{width:.2f}".lstrip("0")
                    panel.text(
                        start + width / 2, place, label, ha="center", va="center", fontsize=7.5,
                        color=label_colour(colour),
                    )  # fmt: skip
                start += width

        names = [(RIGHT, "F1"), (LUCKY, "F1 without evidence")]
        names += [(COLOURS[cause], TITLES[cause]) for cause in causes]
        handles = [Patch(color=colour, label=label) for colour, label in names]
        figure.legend(
            handles=handles, loc="outside lower left", ncols=LEGEND_COLUMNS, frameon=False, fontsize=7.5,
            handlelength=1, handleheight=1,
        )  # fmt: skip

        panel.set_yticks(range(len(runs)), [run.model for run in reversed(runs)])
        panel.set_xlim(0, 1)
        panel.set_xlabel("share of all points", loc="right", labelpad=1)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(length=0)

    return figure


def label_colour(background: str) -> str:
    """Return white, or a dark colour where that has more contrast with the background (WCAG 2)."""
    luminance = _luminance(background)
    on_white = 1.05 / (luminance + 0.05)
    on_dark = (luminance + 0.05) / (_luminance(DARK_TEXT) + 0.05)
    return "white" if on_white >= on_dark else DARK_TEXT


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour, 0 to 1."""
    linear: list[float] = []
    for value in to_rgb(colour):
        linear.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)

    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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
