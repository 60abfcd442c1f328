"""Bulk runs: many questions at once, resumed after a kill.

Finished rollouts go to an append-only log, which the caller keeps in a place of its own for
everything that determines them (:mod:`deepsearch_rl.core.scratch`). A resumed run repeats the rollouts
that a server failed; a run stops when many in a row show that a server is gone. Memory does not
grow with the number of trajectories. docs/evaluation.md, "Bulk runs", says what every kind of line
means when the log is opened again.
"""

import asyncio
import logging
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias

from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.errors import ArtifactError, EndpointError, RecordError
from deepsearch_rl.core.files import (
    AppendLog,
    only_writer,
    parse_record,
    read_distinct,
    read_jsonl,
    write_jsonl,
)
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import SERVER_FAILURES, Question, StopReason, Trajectory
from deepsearch_rl.endpoints.request_options import remedy
from deepsearch_rl.endpoints.timing import RolloutTimes, Stopwatch

_LOG = logging.getLogger(__name__)
_MISSING = -1
SHOWN_NAMES = 10
# After so many server failures in a row the server counts as gone
FAILURES_IN_A_ROW = 16


class Agent(Protocol):
    """Anything that answers questions, e.g. :class:`deepsearch_rl.agent.rollout.SearchAgent`."""

    async def answer(self, question: Question, sample: int) -> Trajectory:
        """Answer one question; ``sample`` counts from 0. A bad rollout is a trajectory, not an exception."""
        ...


MakeAgent: TypeAlias = Callable[[], AbstractAsyncContextManager[Agent]]


def kept_times(profile: str, model: str) -> Path:
    """Return the folder with the times of a model's rollouts, which outlive the logs of their evaluation."""
    return Path("work", profile, "times", model)


def keep_times(logs: Path, profile: str, model: str) -> None:
    """Copy the times of an evaluation's rollouts from its scratch folder to :func:`kept_times`."""
    for times in logs.glob("*/*.times"):
        target = kept_times(profile, model) / times.parent.name / times.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(times, target)


def times_path(log: Path) -> Path:
    """Return the file beside a log with its rollouts' times, a :class:`RolloutTimes` a line; no part of an artifact."""
    return log.with_suffix(".times")


def read_times(logs: Path, trajectories: Collection[str]) -> dict[str, RolloutTimes]:
    """Return the times of rollouts in all logs of an evaluation, by the digest of their trajectory; the latest counts.

    A last line that a kill cut off is left out; raise RecordError where another does not fit.
    """
    times: dict[str, RolloutTimes] = {}
    for path in logs.glob("*/*.times"):
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n") and line.strip():
                    record = parse_record(RolloutTimes, line, path, number)
                    earlier = times.get(record.trajectory, record)
                    if record.trajectory in trajectories and earlier.start_ns <= record.start_ns:
                        times[record.trajectory] = record

    return times


def read_questions(path: Path, count: int | None = None) -> list[Question]:
    """Return the first ``count`` questions of a file, or all; raise ArtifactError where there is none."""
    questions = list(islice(read_distinct(path, Question), count))
    if not questions:
        raise ArtifactError(f"{path} holds no question; run the download stage again.")
    return questions


@dataclass(frozen=True, slots=True)
class TrajectoryFile:
    """An artifact of ``count`` trajectories; every iteration reads the file again, and raises as :func:`read_jsonl`."""

    path: Path
    count: int
    # How many ended because a server failed; a run with the same log makes them again
    server_failures: int = 0
    # How many stand in place of an earlier one that a server had failed
    asked_again: int = 0

    def __iter__(self) -> Iterator[Trajectory]:
        return read_jsonl(self.path, Trajectory)

    def without_server_failures(self) -> Iterator[Trajectory]:
        """Return the rollouts where their scores choose something; raise EndpointError if a server failed one."""
        # As zeros they would be held against what is chosen from
        if self.server_failures:
            raise EndpointError(
                f"a server failed {self.server_failures} of {self.count} rollouts; run the stage again "
                "once it is well, which goes on from the finished ones."
            )

        return iter(self)


def collect(
    questions: Sequence[Question],
    samples: int,
    make_agent: MakeAgent,
    log: Path,
    concurrency: int,
    label: str,
    out: Path,
) -> TrajectoryFile:
    """Answer every question ``samples`` times and write the trajectories to ``out``, sorted by question id and sample.

    Every question has an id of its own. At most ``concurrency`` rollouts run at once. Finished ones
    are read from ``log`` and appended to it; the caller removes it. The agent is not made where the
    log holds everything. ``label`` names the progress line.

    Raise EndpointError where a server failed many rollouts in a row, and as :func:`only_writer` and
    :meth:`RolloutLog.replay`.
    """
    figures = RunningFigures()
    with only_writer(log), AppendLog(log) as lines, AppendLog(times_path(log)) as times:
        rollouts = RolloutLog(lines, questions, samples)
        for trajectory in rollouts.replay():
            figures.add(trajectory, resumed=True)
        again = rollouts.asked_again
        if again:
            _LOG.warning(
                "%s: a server had failed %d of these rollouts; they are asked for again, and rows "
                "count them: %s",
                label,
                len(again),
                shortened(again),
            )

        if figures.finished < len(rollouts):
            with ProgressBar(label, len(rollouts), "rollouts", done=figures.finished) as meter:
                asyncio.run(
                    _answer_missing(rollouts, make_agent, concurrency, times, figures, meter)
                )

        count = write_jsonl(out, rollouts.rollouts())
        artifact = TrajectoryFile(out, count, figures.server_failures, len(rollouts.asked_again))

    if artifact.server_failures:
        counts = f"{artifact.server_failures} of {artifact.count} rollouts"
        _LOG.warning(
            "%s: %s ended because a server failed, and count as failed. A repeated run asks for "
            "those alone; a stage is repeated by `DEEPSEARCH_RESUME=1 dvc repro --force "
            "--single-item STAGE`",
            label,
            counts,
        )

    return artifact


def shortened(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many follow."""
    text = ", ".join(names[:SHOWN_NAMES])
    return text if len(names) <= SHOWN_NAMES else f"{text} and {len(names) - SHOWN_NAMES} more"


class RolloutLog:
    """The rollouts of a run, ``samples`` per question: which are done, and where in the log their lines begin."""

    def __init__(self, log: AppendLog, questions: Sequence[Question], samples: int) -> None:
        self._log = log
        self._questions = questions
        self._samples = samples
        self._positions = {question.id: position for position, question in enumerate(questions)}
        self._offsets = array("q", [_MISSING]) * (len(questions) * samples)
        self._failed_by_server: dict[int, str] = {}

    @property
    def asked_again(self) -> list[str]:
        """Ids of the rollouts that a server had failed when the log was read; this run or one before made them anew."""
        return [self._failed_by_server[slot] for slot in sorted(self._failed_by_server)]

    def __len__(self) -> int:
        """Rollouts of the run, done or not."""
        return len(self._offsets)

    def replay(self) -> Iterator[Trajectory]:
        """Read what an earlier run left, and yield every rollout of this run that is done.

        Raise RecordError where a line is not a trajectory of this schema version, its id is not its
        question's and sample's, or an earlier line holds the same rollout.
        """
        end = 0
        with self._log.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                offset = end
                end = end + len(line)
                if not line.strip():
                    continue
                trajectory = parse_record(Trajectory, line, self._log.path, number)
                id_ = f"{trajectory.question_id}#{trajectory.sample}"

                if trajectory.id != id_:
                    raise RecordError(
                        self._log.path, number, "id", f"{trajectory.id!r} should be {id_!r}"
                    )

                position = self._positions.get(trajectory.question_id)
                if position is None or trajectory.sample >= self._samples:
                    continue
                slot = position * self._samples + trajectory.sample
                if trajectory.stop_reason in SERVER_FAILURES:
                    self._failed_by_server[slot] = trajectory.id
                    continue

                if self._offsets[slot] != _MISSING:
                    problem = f"an earlier line is rollout {id_!r}, too; remove one of them"
                    raise RecordError(self._log.path, number, "id", problem)

                self._offsets[slot] = offset
                yield trajectory

    def missing(self) -> Iterator[tuple[Question, int]]:
        """Yield the rollouts that are not done, question by question; each is looked up when it is taken."""
        for slot, offset in enumerate(self._offsets):
            if offset == _MISSING:
                yield self._questions[slot // self._samples], slot % self._samples

    def append(self, trajectory: Trajectory) -> None:
        """Write a finished rollout as one line, flushed to the operating system."""
        slot = self._positions[trajectory.question_id] * self._samples + trajectory.sample
        self._offsets[slot] = self._log.append(trajectory)

    def rollouts(self) -> Iterator[Trajectory]:
        """Yield every rollout, sorted by question id and sample, read from the log one by one; all must be done."""
        with self._log.path.open("rb") as lines:
            for id_ in sorted(self._positions):
                first = self._positions[id_] * self._samples
                for offset in self._offsets[first : first + self._samples]:
                    lines.seek(offset)
                    yield Trajectory.model_validate_json(lines.readline())


@dataclass(slots=True)
class RunningFigures:
    """Sums over the rollouts of a bulk run, those of earlier runs with them.

    A failed rollout counts as zero in the running F1, as in the F1 table. Tokens per second are
    this run's alone.
    """

    finished: int = 0
    _f1_sum: float = 0.0
    _failures: Counter[StopReason] = field(default_factory=Counter)
    _completion_tokens: int = 0

    def add(self, trajectory: Trajectory, *, resumed: bool = False) -> None:
        """Count a rollout of this run, or a resumed one that an earlier run made."""
        self.finished += 1
        self._f1_sum += score_rollout(trajectory).f1
        if trajectory.failed:
            self._failures[trajectory.stop_reason] += 1
        if not resumed:
            self._completion_tokens += trajectory.completion_tokens

    @property
    def server_failures(self) -> int:
        """Rollouts that ended because a server failed."""
        return sum(self._failures[reason] for reason in SERVER_FAILURES)

    def note(self, elapsed_s: float) -> str:
        """Return the figures in words, e.g. ``F1 0.512, 3 token_budget, 1 model_error, 812 tokens/s``.

        ``elapsed_s`` is how long this run has been answering. The speed is ``-`` where the endpoint
        counts no tokens.
        """
        by_kind = sorted(self._failures.items(), key=lambda entry: (-entry[1], entry[0]))
        failures = ", ".join(f"{count} {reason}" for reason, count in by_kind) or "none failed"
        has_speed = self._completion_tokens > 0 < elapsed_s
        speed = f"{self._completion_tokens / elapsed_s:.0f}" if has_speed else "-"
        return f"F1 {self._f1_sum / max(1, self.finished):.3f}, {failures}, {speed} tokens/s"


async def _answer_missing(
    rollouts: RolloutLog,
    make_agent: MakeAgent,
    concurrency: int,
    times: AppendLog,
    figures: RunningFigures,
    meter: ProgressBar,
) -> None:
    """Make the rollouts that the log does not hold yet, ``concurrency`` at once."""
    missing = rollouts.missing()
    failures_in_a_row = 0

    async def work(agent: Agent) -> None:
        """Answer one missing question after the other; workers share what is missing."""
        nonlocal failures_in_a_row
        for question, sample in missing:
            stopwatch = Stopwatch()
            trajectory = await agent.answer(question, sample)
            # First, so that a rollout whose line is whole has its times
            times.append(stopwatch.stop(trajectory))
            rollouts.append(trajectory)
            figures.add(trajectory)
            meter.advance(note=figures.note(meter.elapsed_s))
            is_server_failure = trajectory.stop_reason in SERVER_FAILURES
            failures_in_a_row = failures_in_a_row + 1 if is_server_failure else 0
            # Of a short run, which has no 16 rollouts
            nothing_else = figures.server_failures == figures.finished == len(rollouts)

            if failures_in_a_row >= FAILURES_IN_A_ROW or nothing_else:
                raise EndpointError(
                    f"{failures_in_a_row} rollouts in a row ended in {trajectory.stop_reason} "
                    f"({trajectory.error}); {remedy(trajectory.error or '')} and repeat the "
                    "command, finished rollouts are kept."
                )

    async with make_agent() as agent:
        workers = [asyncio.create_task(work(agent)) for _ in range(min(concurrency, len(rollouts)))]
        # No TaskGroup: Python 3.11's leaves this task marked as cancelled, which ends the agent's
        # session
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
