"""Curves of training runs (:mod:`deepsearch_rl.train.curves`), as tracking reads them.

A resumed run repeats the steps since its last checkpoint. Of each metric the first value of a step
counts, so that every reading of a file gives the same points, however often training was killed.
Where training begins again, because it had finished or its scratch folder was removed, another run
begins.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deepsearch_rl.core.files import parse_record, sha256_json
from deepsearch_rl.train.curves import CURVES, CurveLine

# Of a metric that count in comparisons: a trainer's output is rounded, its log is not
DIGITS = 5


@dataclass(frozen=True, slots=True)
class CurveRun:
    """One run in a curve file: all its lines, of which the first is number ``first`` of the file, from 0."""

    name: str
    first: int
    lines: list[CurveLine]

    @property
    def stage(self) -> str:
        """The stage that made it, and its item: the name without the digest at its end."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def began_ms(self) -> int:
        """Time of the first step, since 1970."""
        return self.lines[0].time_ms

    @property
    def identity(self) -> str:
        """What tells the run from every other: two trainings on equal inputs differ in when they began."""
        return f"{self.name}/{self.began_ms}"

    @property
    def end(self) -> str | None:
        """How the run ended: FINISHED or FAILED; None while it is running, or where it was killed."""
        return self.lines[-1].end

    @property
    def last(self) -> int:
        """Number of the file's lines up to the end of the run."""
        return self.first + len(self.lines)

    def steps(self, sent: int = 0) -> Iterator[CurveLine]:
        """Yield the steps behind the file's first ``sent`` lines, each with the metrics that no earlier line has."""
        last_steps: dict[str, int] = {}
        for number, line in enumerate(self.lines, self.first + 1):
            step = -1 if line.step is None else line.step
            new: dict[str, float | None] = {}
            for name, value in line.metrics.items():
                if step > last_steps.get(name, -1):
                    new[name] = value
                    last_steps[name] = step

            # Lines that were sent count as well: they have the first value of their steps
            if new and number > sent:
                yield line.model_copy(update={"metrics": new})


def read_runs(path: Path) -> list[CurveRun]:
    """Return the runs of a curve file, without a line cut off by a kill; RecordError for a line that does not fit."""
    runs: list[CurveRun] = []
    for number, text in enumerate(path.read_bytes().splitlines(keepends=True)):
        # Cut off by a kill, or half written
        if not text.endswith(b"\n"):
            continue
        line = parse_record(CurveLine, text, path, number + 1)
        if not runs or _begins_another(line, runs[-1]):
            runs.append(CurveRun(path.stem, number, []))
        runs[-1].lines.append(line)

    return runs


def _begins_another(line: CurveLine, run: CurveRun) -> bool:
    """Return whether a line is the first of another run: the first step again, or any step after the end FINISHED."""
    first = run.lines[0]
    if line.step is None or first.step is None or run.end == "FINISHED":
        return line.step is not None
    return line.step <= first.step and not line.metrics.keys().isdisjoint(first.metrics)


def line_digest(line: Mapping[str, float | None]) -> str:
    """Return the digest of a log's line, but for ``eval_*``, which a curve has in lines of their own."""
    own: dict[str, float] = {}
    for name, value in line.items():
        if value is not None and not name.startswith("eval_"):
            own[name] = round(float(value), DIGITS)

    return sha256_json(own)


def read_steps(work: Path) -> dict[str, tuple[int, CurveRun]]:
    """Return time (ms since 1970) and run of the latest step with each digest, over all curves of a profile.

    Raises as :func:`read_runs`.
    """
    steps: dict[str, tuple[int, CurveRun]] = {}
    for path in sorted((work / CURVES).glob("*.jsonl")):
        for run in read_runs(path):
            for line in run.lines:
                if line.step is not None:
                    digest = line_digest({"step": line.step, **line.metrics})
                    steps[digest] = (line.time_ms, run)

    return steps
