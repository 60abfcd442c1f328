"""``deepsearch table`` and ``summary``: a profile's F1 table, its time and memory."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from pydantic import Field, ValidationError

from deepsearch_rl.cli.shared import ProfileName
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.profile import dvc_file, require_profile
from deepsearch_rl.core.records import ForeignRecord
from deepsearch_rl.core.stage import TIMINGS

# Between two stages of one run
LONGEST_PAUSE_S = 60.0
TIMELINE_WIDTH = 40
SMOKE_NOTE = (
    "The profile smoke shows that every stage runs. Its models train for seconds, so F1 .000 is "
    "what to expect; `make repro` trains a model that finds answers."
)


class StageRun(ForeignRecord):
    """One finished run of a stage, as core/stage.py writes it into ``work/timings.jsonl``."""

    profile: str
    stage: str = Field(description="name as DVC gives it, e.g. rl@sft")
    started: float = Field(default=0.0, description="seconds since 1970; 0: not known")
    seconds: float = Field(ge=0, description="wall time, imports left out")
    peak_mb: int = Field(
        ge=0, description="peak resident memory of the stage's process and its largest child, MiB"
    )


def table_command(profile: ProfileName = "tiny") -> None:
    """Print the F1 table of a profile as it was last reported."""
    typer.echo(read_table(Path(), profile))


def summary_command(profile: ProfileName = "tiny") -> None:
    """Print the F1 table, each stage's time and peak memory, and where to look next."""
    typer.echo(render(Path(), profile))


def read_table(root: Path, profile: str) -> str:
    """Return the F1 table of a profile in Markdown; raise ArtifactError if it has no report yet."""
    require_profile(root, profile)
    table = root / "reports" / profile / "f1_table.md"

    if not table.is_file():
        raise ArtifactError(f"{table} does not exist yet; `make repro PROFILE={profile}` makes it.")

    return table.read_text(encoding="utf-8").rstrip()


def latest_runs(root: Path, profile: str) -> list[StageRun]:
    """Return the last run of every stage of a profile, in the order in which the stages last ran.

    A line that is no run is passed over: a full disk cuts lines off, and a lost measurement is no
    reason to refuse a run.
    """
    if not (root / TIMINGS).is_file():
        return []
    latest: dict[str, StageRun] = {}

    for line in (root / TIMINGS).read_bytes().splitlines():
        try:
            run = StageRun.model_validate_json(line)
        except ValidationError:
            continue
        if run.profile == profile:
            # Removed first, so that the stage moves to the end
            latest.pop(run.stage, None)
            latest[run.stage] = run

    return list(latest.values())


def last_whole_run(runs: Sequence[StageRun]) -> list[StageRun]:
    """Return the stages of the newest run, the last to end first; those that are left out ended long before it."""
    newest: list[StageRun] = []
    first_start = math.inf
    for run in sorted(runs, key=lambda run: run.started + run.seconds, reverse=True):
        end = run.started + run.seconds
        if not newest or end > first_start - LONGEST_PAUSE_S:
            newest.append(run)
            first_start = min(first_start, run.started)

    return newest


def wall_s(runs: Sequence[StageRun]) -> float:
    """Return the seconds from the first start to the last end."""
    return max(run.started + run.seconds for run in runs) - min(run.started for run in runs)


def timeline(runs: Sequence[StageRun]) -> Iterator[str]:
    """Yield a line per stage, with a bar for those of the newest run: when it ran, from the run's start to its end."""
    newest = last_whole_run(runs)
    first = min(run.started for run in newest)
    # A run that took no time would have no scale
    scale = TIMELINE_WIDTH / max(wall_s(newest), 1.0)

    for run in runs:
        start = int((run.started - first) * scale)
        length = max(int(run.seconds * scale), 1)
        bar = f"  {' ' * start}{'=' * length}" if run in newest and run.started else ""
        yield f"{run.stage:<22}{run.seconds:>9.1f} s{run.peak_mb:>8,} MiB{bar}"

    total = sum(run.seconds for run in runs)
    peak_mb = max(run.peak_mb for run in runs)
    yield f"{'total / highest':<22}{total:>9.1f} s{peak_mb:>8,} MiB"
    if first:
        yield f"{'from start to end':<22}{wall_s(newest):>9.1f} s"


def render(root: Path, profile: str) -> str:
    """Return what `make repro` prints at its end."""
    parts = [read_table(root, profile), *([SMOKE_NOTE] if profile == "smoke" else [])]
    runs = latest_runs(root, profile)
    if runs:
        title = "Where the time went (last run of each stage):"
        parts.append("\n".join([title, "", *timeline(runs)]))

    dvc_yaml = dvc_file(profile)
    hints = {
        f"reports/{profile}/index.html": "the report with its plots and rollouts, in a browser",
        "make ui": "runs and figures in Prefect and MLflow",
        f"dvc dag {dvc_yaml}": "the graph",
        f"dvc status {dvc_yaml}": "what would run again",
        "deepsearch doctor": "what the other profiles need",
    }
    width = max(map(len, hints))
    lines = [f"  {command:<{width}}   {meaning}" for command, meaning in hints.items()]
    return "\n\n".join([*parts, "\n".join(["Where to look next:", *lines])])
