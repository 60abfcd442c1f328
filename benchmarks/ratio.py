"""How the project compares with another in one run: medians of rounds in turn, and their noise."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.measure import in_turn, timed

MAX_LOSS = 0.15
HEADER = ("what", "ratio", "noise", "ours", "the other", "unit")


@dataclass(frozen=True, slots=True)
class Ratio:
    """The medians of what was compared, and how far the rounds were apart."""

    ratio: float
    noise: float
    ours: float
    other: float
    unit: str

    @classmethod
    def of(cls, ours: Sequence[float], other: Sequence[float], unit: str) -> "Ratio":
        """Return the ratio of two times, or of two rates, of the same rounds."""
        is_rate = unit.endswith("/s")
        ratios: list[float] = []
        for our, their in zip(ours, other, strict=True):
            ratios.append(our / their if is_rate else their / our)

        ratio = statistics.median(ratios)
        noise = (max(ratios) - min(ratios)) / 2 / ratio
        return cls(ratio, noise, statistics.median(ours), statistics.median(other), unit)

    def loss(self, committed: "Ratio") -> float:
        """Return the share of the committed ratio that is lost; negative where it is greater now."""
        return 1 - self.ratio / committed.ratio

    def is_lost(self, committed: "Ratio") -> bool:
        """Return whether the loss is more than noise explains."""
        return self.loss(committed) > max(MAX_LOSS, self.noise, committed.noise)


def table_rows(ratios: Mapping[str, Ratio]) -> list[tuple[object, ...]]:
    """Return the rows of a table below ``HEADER``."""
    rows: list[tuple[object, ...]] = []
    for name, ratio in ratios.items():
        size = f"{ratio.ours:.3g}", f"{ratio.other:.3g}", ratio.unit
        rows.append((name, f"{ratio.ratio:.2f}", f"{100 * ratio.noise:.0f}%", *size))

    return rows


def wall(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` takes."""
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds that ``work`` takes."""
    return timed(work)[0]


def compare(
    ours: Callable[[], object],
    other: Callable[[], object],
    rounds: int,
    measure: Callable[[Callable[[], object]], float],
) -> Ratio:
    """Return the ratio of two pieces of work, each of which is done once before."""
    ours()
    other()
    runs = in_turn({"ours": partial(measure, ours), "other": partial(measure, other)}, rounds)
    return Ratio.of(runs["ours"], runs["other"], "CPU s" if measure is cpu else "s")
