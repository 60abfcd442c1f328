"""The table of an RL comparison, for the terminal, a Markdown file and the page: a line per setting."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean, stdev

from deepsearch_rl.evaluate.rl_comparison.comparison import Comparison, TrainedRun

# Fields of Scores with their titles
SCORES = {
    "dev_sampled": "dev F1",
    "dev_greedy": "dev F1, greedy",
    "dev_unanswerable": "unanswerable, greedy",
    "world_sampled": "other world F1",
    "world_greedy": "other world F1, greedy",
    "world_unanswerable": "its unanswerable, greedy",
    "other_sets_sampled": "its other sets",
    "other_sets_greedy": "its other sets, greedy",
    "tool_calls": "searches",
}
# Metrics of train_log.jsonl that the table has where the engine logs them
METRICS = {
    "entropy": "entropy",
    "kl": "KL",
    "clip_fraction": "clipped",
    "refusals": "refusals in training",
    "trained_tokens": "trained tokens",
}
# Characters of a setting's name in tables and figures
_NAME_LENGTH = 40


@dataclass(frozen=True, slots=True)
class Table:
    """Titles of the columns and the cells of the lines, the start's first."""

    header: list[str]
    lines: list[list[str]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rows = [self.header, ["---"] * len(self.header)]
        for name, *cells in self.lines:
            rows.append([f"`{name}`", *cells])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def short_names(settings: Sequence[str]) -> dict[str, str]:
    """Return what tables and figures call each setting: the fields that not all settings have, by their last names.

    A setting that has only what all have is called "nothing else". A long name is cut at its end;
    where two would be called alike, all keep their whole text.
    """
    shared = shared_fields(settings)
    names: dict[str, str] = {}
    for setting in settings:
        parts: list[str] = []
        for part in setting.split():
            if part not in shared:
                field, _, value = part.partition("=")
                parts.append(f"{field.rpartition('.')[2]}={value}")

        name = " ".join(parts) or "nothing else"
        names[setting] = name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"

    if len(set(names.values())) < len(names):
        return {setting: setting for setting in settings}
    return names


def shared_fields(settings: Sequence[str]) -> list[str]:
    """Return the ``field=value`` that all of several settings have, in the first one's order; none of a single one."""
    if len(settings) < 2:
        return []

    first, *others = [setting.split() for setting in settings]
    common = set(first).intersection(*others)
    return [part for part in first if part in common]


def comparison_table(comparison: Comparison) -> Table:
    """Return the start and every setting, each a line of means ± standard deviations over its seeds.

    A column without a figure in any line is left out.
    """
    columns: list[tuple[str, str, list[str]]] = []
    for field, title in SCORES.items():
        start = _number(getattr(comparison.start_scores, field))
        columns.append((title, start, _cells(comparison, attrgetter(f"scores.{field}"))))
    for metric, title in METRICS.items():
        columns.append(
            (title, "", _cells(comparison, lambda run, name=metric: run.steps.get(name)))
        )
    columns.append(("CPU s", "", _cells(comparison, lambda run: run.cpu_s)))

    names = short_names(list(comparison.runs))
    header = ["setting", "runs"]
    start_line = [comparison.start, ""]
    setting_lines = [[names[setting], str(len(runs))] for setting, runs in comparison.runs.items()]
    for title, start, cells in columns:
        if not any([start, *cells]):
            continue
        header.append(title)
        start_line.append(start)
        for line, cell in zip(setting_lines, cells, strict=True):
            line.append(cell)

    return Table(header, [start_line, *setting_lines])


def _cells(comparison: Comparison, value: Callable[[TrainedRun], float | None]) -> list[str]:
    """Return the cell of a column in the line of each setting."""
    cells: list[str] = []
    for runs in comparison.runs.values():
        figures = [figure for figure in map(value, runs) if figure is not None]
        cells.append(mean_and_spread(figures))

    return cells


def mean_and_spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation of a sample; the mean of one value; nothing for none."""
    if not values:
        return ""
    # Tokens and seconds are large numbers, everything else is about 1
    digits = 3 if max(map(abs, values)) < 10 else 0
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def _number(value: float | None) -> str:
    return "" if value is None else mean_and_spread([value])
