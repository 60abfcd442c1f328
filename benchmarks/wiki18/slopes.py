"""From measured builds to a corpus of another size: straight lines through time, disk and memory."""

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from benchmarks.wiki18.encoder_slope import EncoderSlope
from deepsearch_rl.records import Record

WIKI18_ROWS = 21_015_324
PARTS: tuple[str, ...] = ("digest", "rows", "bm25", "vectors", "training", "adding", "other")
MB = 1e6


class PartCost(Record):
    """What one part of a build took."""

    cpu_s: float = Field(ge=0)
    anon_bytes: int = Field(ge=0, description="highest RssAnon seen while the part ran")


class BuildCost(Record):
    """What one build took, in a process of its own."""

    rows: int
    corpus_bytes: int
    parts: dict[str, PartCost]
    wall_s: float
    index_bytes: int
    disk_peak_bytes: int
    """Index and unfinished work, the corpus not counted."""


class Results(Record):
    """All that was measured, so that sizes can be measured on different days."""

    builds: dict[int, BuildCost] = Field(default_factory=dict)
    encoder: EncoderSlope | None = None


def at(rows: int, sizes: Sequence[int], values: Sequence[float]) -> float:
    """The value at a number of rows of the least-squares line through measured ones, not a number of fewer than two.

    A line that falls is noise about something that does not depend on the rows, and gives its mean.
    """
    if len(sizes) < 2:
        return float("nan")
    slope, start = np.polyfit(sizes, values, 1)
    return float(start + slope * rows) if slope > 0 else float(np.mean(values))


def build_rows(results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of the table of builds, the last row the line's value for wiki-18."""
    builds = [results.builds[size] for size in sorted(results.builds)]
    sizes = [build.rows for build in builds]
    columns: list[tuple[str, list[float], str]] = [
        *((f"{part}, CPU s", [build.parts[part].cpu_s for build in builds], "{:,.1f}") for part in PARTS),
        ("all, CPU s", [sum(part.cpu_s for part in build.parts.values()) for build in builds], "{:,.0f}"),
        ("index, MB", [build.index_bytes / MB for build in builds], "{:,.0f}"),
        ("disk at most, MB", [build.disk_peak_bytes / MB for build in builds], "{:,.0f}"),
    ]
    header = ("passages", *(name for name, _, _ in columns))
    rows = [
        (f"{build.rows:,}", *(form.format(values[place]) for _, values, form in columns))
        for place, build in enumerate(builds)
    ]
    line = (_written(form, at(WIKI18_ROWS, sizes, values)) for _, values, form in columns)
    return header, [*rows, (f"{WIKI18_ROWS:,} (line)", *line)]


def memory_rows(results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of the table of memory: the highest RssAnon of every part at every size, in MB, and of the whole.

    The whole is the largest of its parts, on the line too: another part may lead at another size.
    """
    builds = [results.builds[size] for size in sorted(results.builds)]
    sizes = [build.rows for build in builds]
    values = {part: [build.parts[part].anon_bytes / MB for build in builds] for part in PARTS}
    lines = {part: at(WIKI18_ROWS, sizes, measured) for part, measured in values.items()}
    header = ("RssAnon at most, MB", *(f"{size:,}" for size in sizes), f"{WIKI18_ROWS:,} (line)")
    columns = [*zip(*values.values(), strict=True), tuple(lines.values())]
    rows = [(part, *(_written("{:,.0f}", value) for value in (*values[part], lines[part]))) for part in PARTS]
    return header, [*rows, ("the whole build", *(_written("{:,.0f}", max(column)) for column in columns))]


def _written(form: str, value: float) -> str:
    return "-" if math.isnan(value) else form.format(value)


def encoder_text(encoder: EncoderSlope) -> str:
    """What encoding wiki-18 takes, by the slope of a few hundred passages."""
    days = encoder.cpu_s * WIKI18_ROWS / 86400
    flop = 2 * encoder.parameters * encoder.tokens
    return (
        f"Encoding with a model of e5-base's shape ({encoder.parameters / 1e6:.0f} million multiplied parameters): "
        f"{encoder.passages} real passages of {encoder.tokens:.0f} tokens took {encoder.cpu_s:.3f} CPU seconds each on "
        f"one core ({flop / encoder.cpu_s / 1e9:.0f} GFLOP/s), which is {days:,.0f} core days for all, or "
        f"{flop * WIKI18_ROWS / 1e18:.2f} EFLOP."
    )
