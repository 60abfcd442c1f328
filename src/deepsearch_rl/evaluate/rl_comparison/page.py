"""The page of an RL comparison: one HTML file that fetches nothing, in the style of the report's page."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from deepsearch_rl.core.files import atomic_file, write_json
from deepsearch_rl.evaluate.report.page import page_templates
from deepsearch_rl.evaluate.report.plots import FAINT, STYLE, hide_frame, inline_svg
from deepsearch_rl.evaluate.rl_comparison.comparison import (
    Comparison,
    Scores,
    Settings,
    compare_settings,
)
from deepsearch_rl.evaluate.rl_comparison.tables import (
    SCORES,
    comparison_table,
    shared_fields,
    short_names,
)

TEMPLATES = Path(__file__).with_name("templates")
# Scores that have a panel of the figure, where they are known
PANELS = ("dev_sampled", "dev_greedy", "world_sampled", "world_greedy", "other_sets_sampled")
_PANEL_INCHES = 1.75
_NAMES_INCHES = 2.2
_LINE_INCHES = 0.26
_CURVES_INCHES = (4.7, 2.4)
# Width on the page: every figure's text has one size
_REM_PER_INCH = 5.5


def compare(settings: Settings, folder: Path, announce: Callable[[str], None]) -> Comparison:
    """Compare settings and return the result; table and page are in ``folder`` after every run.

    Raises as :func:`~deepsearch_rl.evaluate.rl_comparison.comparison.compare_settings`.
    """
    comparisons = compare_settings(settings, announce)
    comparison = next(comparisons)
    write_comparison(comparison, folder)
    for comparison in comparisons:
        write_comparison(comparison, folder)

    return comparison


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Write ``table.json`` (all figures), ``table.md`` and ``index.html`` into a folder."""
    write_json(folder / "table.json", comparison.model_dump(mode="json"))
    texts = {
        "table.md": comparison_table(comparison).markdown(),
        "index.html": render_page(comparison),
    }
    for name, text in texts.items():
        with atomic_file(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")


def render_page(comparison: Comparison) -> str:
    """Return the page as HTML."""
    template = page_templates(TEMPLATES).get_template("rl_comparison.html")
    figure = scores_figure(comparison)
    scores = inline_svg(figure, "scores", "F1 of every run by setting, and of the start")
    curves = inline_svg(curves_figure(comparison), "curves", "F1 on dev by step and setting")
    return template.render(
        comparison=comparison,
        table=comparison_table(comparison),
        shared=shared_fields(list(comparison.runs)),
        names=short_names(list(comparison.runs)),
        scores=scores,
        scores_rem=_REM_PER_INCH * figure.get_figwidth(),
        curves=curves,
    )


def scores_figure(comparison: Comparison) -> Figure:
    """Draw a panel per score: a line per setting with a small dot per seed and a large one for their mean.

    The start is a dashed line.
    """
    fields = [name for name in PANELS if getattr(comparison.start_scores, name) is not None]
    names = list(short_names(list(comparison.runs)).values())
    width = _NAMES_INCHES + _PANEL_INCHES * len(fields)

    with mpl.rc_context(STYLE):
        size = (width, 0.8 + _LINE_INCHES * len(names))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(fields), squeeze=False, sharey=True).ravel()
        for panel, field in zip(panels, fields, strict=True):
            _score_panel(panel, comparison, field)

        panels[0].set_yticks(range(len(names), 0, -1), names)
        panels[0].set_ylim(0.3, len(names) + 0.7)

    return figure


def _score_panel(panel: Axes, comparison: Comparison, field: str) -> None:
    panel.set_title(SCORES[field].replace(" F1", ""))
    start = _value(comparison.start_scores, field)
    panel.axvline(start, color=FAINT, linestyle=(0, (3, 3)), linewidth=1)

    for place, runs in enumerate(comparison.runs.values()):
        height = len(comparison.runs) - place
        colour = _colour(place)
        values = [_value(run.scores, field) for run in runs]
        panel.plot(values, [height] * len(values), "o", markersize=3, color=colour, alpha=0.5)
        if values:
            panel.plot([fmean(values)], [height], "o", markersize=7, color=colour)

    panel.xaxis.set_major_locator(MaxNLocator(3))
    hide_frame(panel)


def curves_figure(comparison: Comparison) -> Figure:
    """Draw the F1 on the dev questions that choose the checkpoint: by step, a line per setting (means over seeds).

    A setting has the colour that it has in :func:`scores_figure`.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=_CURVES_INCHES, layout="constrained")
        panel = figure.subplots()
        for place, runs in enumerate(comparison.runs.values()):
            curve = mean_curve([run.dev_f1 for run in runs])
            panel.plot(list(curve), list(curve.values()), "o-", color=_colour(place))

        panel.set_xlabel("step")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        hide_frame(panel)

    return figure


def mean_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the mean of several curves at the steps that all of them have."""
    if not curves:
        return {}

    steps = set(curves[0]).intersection(*curves[1:])
    return {step: fmean(curve[step] for curve in curves) for step in sorted(steps)}


def _value(scores: Scores, field: str) -> float:
    value = getattr(scores, field)
    assert value is not None, field
    return value


def _colour(place: int) -> str:
    return f"C{place % 10}"
