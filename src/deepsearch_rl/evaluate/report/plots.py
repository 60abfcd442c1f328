"""Figures of F1 by model and set, and of the learning curves of RL runs.

matplotlib writes the date and random element ids into SVG files; both are switched off here, so
that equal results have equal files. For the page, figures are narrow (readable on a phone) and
their ink follows the page's colours.
"""

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from deepsearch_rl.core.files import atomic_file, read_jsonl, read_record
from deepsearch_rl.core.records import ForeignRecord
from deepsearch_rl.evaluate.f1_row import F1TableRow
from deepsearch_rl.evaluate.tables import F1Table
from deepsearch_rl.train.curves import Alarm, TrainingStep

STYLE = mpl.rc_params_from_file(
    Path(__file__).with_name("report.mplstyle"), use_default_template=False
)
INK = STYLE["text.color"]
FAINT = STYLE["axes.edgecolor"]
COLOURS = {"base": "#7d838c", "sft": "#3f7fd1", "rl": "#bd7414", "sft_rl": "#12876a"}
OTHER_COLOUR = "#8f5bb5"
PANEL_INCHES = (4.7, 1.9)
# Height that a line beyond the fourth adds to a panel
LINE_INCHES = 0.29


class Gate(ForeignRecord):
    """F1 of the start before the first step, of one answer and of the best of several.

    It answers the first dev questions at the temperature of training, so that neither compares with a dev F1.
    """

    pass_1: float
    pass_k: float
    samples: int


class RlManifest(ForeignRecord):
    """The fields of an RL run's ``manifest.json`` that the report shows."""

    steps: int
    best_step: int
    best_dev_f1: float
    alarms: tuple[Alarm, ...]
    gate: Gate | None = None
    gate_warning: str = ""
    backend: str = ""
    device: str = ""
    dtype: str = ""
    seed: int | None = None


class RlTrainingLog(NamedTuple):
    """One RL run: its log by step, of which step 0 is the policy before training, and which checkpoint was kept."""

    manifest: RlManifest
    steps: tuple[TrainingStep, ...]

    @property
    def start_dev_f1(self) -> float | None:
        """F1 of the policy before training on the questions that choose the checkpoint; None where it is not logged."""
        for line in self.steps:
            if line.step == 0:
                return line.dev_f1

        return None


def read_rl_run(folder: Path) -> RlTrainingLog:
    """Return log and manifest of one RL run; raise ArtifactError or RecordError where one does not fit."""
    steps = tuple(read_jsonl(folder / "train_log.jsonl", TrainingStep))
    return RlTrainingLog(read_record(folder / "manifest.json", RlManifest), steps)


def colour_of(model: str) -> str:
    """Return the colour that a model has in every figure."""
    return COLOURS.get(model, OTHER_COLOUR)


def f1_figure(table: F1Table, datasets: Sequence[str], columns: int) -> Figure:
    """Draw a panel per question set: F1 with its interval by model, each variant on its own line below its model.

    Greedy answers are hollow, variants square, the constant answer is dashed.
    """
    columns = min(columns, len(datasets))
    lines = -(-len(datasets) // columns)
    rows_by_panel = list(map(table.rows_of, datasets))
    most = max(map(len, map(_lines, rows_by_panel)))
    height = PANEL_INCHES[1] + LINE_INCHES * max(0, most - 4)

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PANEL_INCHES[0] * columns, height * lines), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False, sharex=True).ravel()
        for panel, rows in zip(panels, rows_by_panel, strict=False):
            _f1_panel(panel, rows)
        for panel in panels[len(datasets) :]:
            panel.set_axis_off()

    return figure


def _lines(rows: Sequence[F1TableRow]) -> list[tuple[str, str]]:
    """Return the model and variant of every line of a panel, from the top."""
    return list(dict.fromkeys((row.model, row.variant) for row in rows))


def _f1_panel(panel: Axes, rows: Sequence[F1TableRow]) -> None:
    first = next((row for row in rows if not row.kind), rows[0])
    lines = _lines(rows)
    panel.set_title(
        f"{first.dataset}{' (generated)' if first.generated else ''}, {first.n} questions"
    )
    panel.axvline(first.constant.f1, color=FAINT, linestyle=(0, (3, 3)), linewidth=1)

    for row in rows:
        height = len(lines) - lines.index((row.model, row.variant)) - (0.0 if row.main else 0.3)
        colour = colour_of(row.model)
        mark = "s" if row.variant else "o"
        panel.plot(
            [row.f1_low, row.f1_high],
            [height, height],
            color=colour,
            linewidth=2.2,
            solid_capstyle="round",
        )
        face = colour if row.main else "none"
        panel.plot(
            [row.f1],
            [height],
            marker=mark,
            markersize=6,
            markerfacecolor=face,
            markeredgecolor=colour,
        )

    panel.set_yticks(range(len(lines), 0, -1), [", ".join(filter(None, line)) for line in lines])
    panel.set_ylim(0.3, len(lines) + 0.6)
    panel.set_xlim(-0.02, 1.02)
    panel.set_xlabel("F1", loc="right", labelpad=1)
    hide_frame(panel)


def rl_figure(runs: Mapping[str, RlTrainingLog]) -> Figure:
    """Draw by step, from the top: reward, F1 on training questions (line) and on dev questions (dots), searches.

    The dot of the checkpoint that was kept is filled. Reward and dev F1 have the intervals whose
    errors are logged.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PANEL_INCHES[0], 5.4), layout="constrained")
        reward, f1, searches = figure.subplots(3, 1, sharex=True)
        reward.set_title("reward, mean of a step's rollouts")
        f1.set_title("F1: rollouts (line), dev (dots; filled: kept)")
        searches.set_title("searches per rollout")

        for start, run in sorted(runs.items()):
            colour = colour_of("rl" if start == "base" else f"{start}_rl")
            _curve(reward, run.steps, "reward", color=colour, label=f"from {start}")
            _curve(f1, run.steps, "f1", color=colour, alpha=0.6)
            _curve(searches, run.steps, "tool_calls", color=colour)
            _reward_band(reward, run.steps, colour)
            for line in run.steps:
                if line.dev_f1 is not None:
                    is_best = line.step == run.manifest.best_step
                    _dev_dot(f1, line, line.dev_f1, colour, is_filled=is_best)

        f1.set_ylim(0, 1)
        searches.set_ylim(bottom=0)
        searches.set_xlabel("step")
        searches.xaxis.set_major_locator(MaxNLocator(integer=True))
        if runs:
            reward.legend(frameon=False, loc="best")
        for panel in (reward, f1, searches):
            hide_frame(panel)

    return figure


def _reward_band(panel: Axes, steps: Sequence[TrainingStep], colour: str) -> None:
    """Shade the interval of the mean reward over the steps that have its error."""
    places: list[int] = []
    lows: list[float] = []
    highs: list[float] = []
    for line in steps:
        ends = line.interval("reward")
        if ends:
            places.append(line.step)
            lows.append(ends[0])
            highs.append(ends[1])

    # matplotlib refuses a band without a point
    if places:
        panel.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)


def _dev_dot(
    panel: Axes, line: TrainingStep, dev_f1: float, colour: str, *, is_filled: bool
) -> None:
    """Draw the F1 of a step on dev, with its interval where the error is known."""
    ends = line.interval("dev_f1")
    if ends:
        panel.plot([line.step] * 2, ends, color=colour, linewidth=1)
    panel.plot(
        [line.step],
        [dev_f1],
        "o",
        markersize=6,
        markerfacecolor=colour if is_filled else "none",
        markeredgecolor=colour,
    )


def _curve(panel: Axes, steps: Sequence[TrainingStep], metric: str, **style: Any) -> None:
    """Draw a line through the steps that have the metric."""
    places: list[int] = []
    values: list[float] = []
    for line in steps:
        if metric in line.metrics:
            places.append(line.step)
            values.append(line.metrics[metric])

    panel.plot(places, values, **style)


def hide_frame(panel: Axes) -> None:
    """Draw of a panel's frame the lower line alone, and faint lines up from the ticks of x."""
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
    panel.tick_params(length=0)


def save_figure(figure: Figure, stem: Path) -> None:
    """Write ``<stem>.svg`` and ``<stem>.png`` on white, equal bytes for equal figures."""
    with atomic_file(stem.with_suffix(".svg")) as partial:
        partial.write_text(_svg(figure, transparent=False), encoding="utf-8")
    with atomic_file(stem.with_suffix(".png")) as partial, mpl.rc_context(STYLE):
        FigureCanvasAgg(figure).print_png(partial, metadata={"Software": None})


def inline_svg(figure: Figure, name: str, description: str) -> Markup:
    """Return the figure as an SVG element for a page: no fixed size, its own ids, ink in the page's text colour."""
    svg = _svg(figure, transparent=True)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' (?:height|width)="[^"]*"', "", svg, count=2)
    # Figures of one page must not share ids: a clip path of one would cut the other
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg).replace("url(#", f"url(#{name}-")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor").replace("'DejaVu Sans'", "inherit")
    return Markup(
        svg.replace("<svg", f'<svg role="img" aria-label="{escape(description, quote=True)}"', 1)
    )


def _svg(figure: Figure, *, transparent: bool) -> str:
    text = io.StringIO()
    figure.patch.set_facecolor("none" if transparent else "white")
    for panel in figure.axes:
        panel.set_facecolor("none")
    with mpl.rc_context(STYLE):
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", text.getvalue(), flags=re.MULTILINE)
