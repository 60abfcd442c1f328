"""Bulk runs: many questions at once, resumed after a kill.

Finished rollouts go to an append-only log, which the caller keeps in a place of its own for
everything that determines them (:mod:`deepsearch_rl.core.stage`). A resumed run repeats the rollouts
that a server failed; a run stops when many in a row show that a server is gone. Memory does not
grow with the number of trajectories. docs/evaluation.md, "Bulk runs", says what every kind of line
means when the log is opened again.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout_log import RolloutLog
from deepsearch_rl.agent.timing import Stopwatch, times_path
from deepsearch_rl.chat.request_options import remedy
from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.errors import ArtifactError, EndpointError, look_up
from deepsearch_rl.core.files import (
    AppendLog,
    only_writer,
    read_distinct,
    read_jsonl,
    write_jsonl,
)
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import SERVER_FAILURES, Question, Record, StopReason, Trajectory
from deepsearch_rl.search.quality import DatasetConfig
from deepsearch_rl.server.config import RetrievalConfig

_LOG = logging.getLogger(__name__)
SHOWN_NAMES = 10
# After so many server failures in a row the server counts as gone
FAILURES_IN_A_ROW = 16


class Agent(Protocol):
    """Anything that answers questions, e.g. :class:`deepsearch_rl.agent.rollout.SearchAgent`."""

    async def answer(self, question: Question, sample: int) -> Trajectory:
        """Answer one question; ``sample`` counts from 0. A bad rollout is a trajectory, not an exception."""
        ...


MakeAgent: TypeAlias = Callable[[], AbstractAsyncContextManager[Agent]]


def read_questions(path: Path, count: int | None = None) -> list[Question]:
    """Return the first ``count`` questions of a file, or all; raise ArtifactError where there is none."""
    questions = list(islice(read_distinct(path, Question), count))
    if not questions:
        raise ArtifactError(f"{path} holds no question; run the download stage again.")
    return questions


class RolloutSetting(Record):
    """The folder of a data set's questions, index and chunks of its corpus, and the settings of rollouts."""

    questions: Path
    index: Path
    chunks: Path
    agent: AgentConfig
    retrieval: RetrievalConfig
    seed: int

    @classmethod
    def of(cls, profile: Profile, dataset: str) -> Self:
        """Return a profile's setting for one of its data sets.

        Raise UnknownNameError for an unknown data set, ConfigError where a section does not fit.
        """
        datasets = profile.mapping("datasets", DatasetConfig)
        corpus = look_up("dataset", dataset, datasets).corpus
        return cls(
            questions=profile.data / "questions" / dataset,
            index=profile.data / "index" / corpus,
            chunks=profile.data / "chunks" / f"{corpus}.jsonl",
            agent=profile.section("agent", AgentConfig),
            retrieval=profile.section("retrieval", RetrievalConfig).for_dataset(dataset, datasets),
            seed=profile.value("seed"),
        )

    def split(self, name: str) -> Path:
        """Return the file of a split's questions, e.g. of ``dev``."""
        return self.questions / f"{name}.jsonl"


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


@dataclass(frozen=True, slots=True)
class BulkRun:
    """Questions that an agent answers ``samples`` times each, and the file that gets the trajectories.

    Every question has an id of its own. ``make_agents`` has an agent for each server of the model,
    and each takes the next question as soon as it has room for one; none is made where the log holds
    everything. Finished rollouts are read from ``log`` and appended to it; the caller removes it.
    ``label`` names the progress line.
    """

    questions: Sequence[Question]
    samples: int
    make_agents: Sequence[MakeAgent]
    log: Path
    label: str
    out: Path


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


def collect(run: BulkRun, concurrency: int) -> TrajectoryFile:
    """Make the rollouts of one run, and return them; as :func:`collect_in_turn`."""
    return collect_in_turn([run], concurrency)[0]


def collect_in_turn(runs: Sequence[BulkRun], concurrency: int) -> list[TrajectoryFile]:
    """Make the rollouts of several runs, and write each one's, sorted by question id and sample.

    The runs have equally many agents, and each server makes at most ``concurrency`` rollouts of all
    runs at once. A run begins when the last question of the one before has been given to an agent:
    the last answers take long, and few of them would leave a server idle.

    Raise EndpointError where a server failed many rollouts in a row, and as :func:`only_writer` and
    :meth:`RolloutLog.replay`.
    """
    with contextlib.ExitStack() as stack:
        open_runs = [stack.enter_context(_opened(run)) for run in runs]
        unfinished = [run for run in open_runs if run.missing]
        if unfinished:
            asyncio.run(_answer_in_turn(unfinished, concurrency))

        return [run.write() for run in open_runs]


@contextlib.contextmanager
def _opened(run: BulkRun) -> Iterator["_OpenRun"]:
    """Open a run's log, count what an earlier start left there, and yield the run."""
    figures = RunningFigures()
    with (
        only_writer(run.log),
        AppendLog(run.log) as lines,
        AppendLog(times_path(run.log)) as times,
    ):
        rollouts = RolloutLog(lines, run.questions, run.samples)
        for trajectory in rollouts.replay():
            figures.add(trajectory, resumed=True)

        again = rollouts.asked_again
        if again:
            _LOG.warning(
                "%s: a server had failed %d of these rollouts; they are asked for again, and rows "
                "count them: %s",
                run.label,
                len(again),
                shortened(again),
            )

        yield _OpenRun(run, rollouts, times, figures)


def shortened(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many follow."""
    text = ", ".join(names[:SHOWN_NAMES])
    return text if len(names) <= SHOWN_NAMES else f"{text} and {len(names) - SHOWN_NAMES} more"


class _OpenRun:
    """A run whose log is open: what is missing, and the figures of what is done."""

    def __init__(
        self, run: BulkRun, rollouts: RolloutLog, times: AppendLog, figures: RunningFigures
    ) -> None:
        self._run = run
        self._rollouts = rollouts
        self._times = times
        self._figures = figures
        self._failures_in_a_row = 0
        # How many rollouts have neither been made nor begun
        self.missing = len(rollouts) - figures.finished
        self.all_begun = asyncio.Event()
        self.all_made = asyncio.Event()
        self.is_shown = asyncio.Event()

    @property
    def servers(self) -> int:
        """How many servers answer it."""
        return len(self._run.make_agents)

    async def answer(
        self, rooms: Sequence[asyncio.Semaphore], workers: int, before: "_OpenRun | None"
    ) -> None:
        """Make what is missing once all rollouts of the run before have begun, each in a place of its server's room."""
        if before is not None:
            await before.all_begun.wait()

        total, done = len(self._rollouts), self._figures.finished
        meter = ProgressBar(self._run.label, total, "rollouts", done=done)
        await _together([self._make_missing(rooms, workers, meter), self._show(meter, before)])

    async def _make_missing(
        self, rooms: Sequence[asyncio.Semaphore], workers: int, meter: ProgressBar
    ) -> None:
        missing = self._rollouts.missing()
        workers = min(workers, self.missing)
        async with contextlib.AsyncExitStack() as stack:
            work: list[Coroutine[Any, Any, None]] = []
            for make_agent, room in zip(self._run.make_agents, rooms, strict=True):
                agent = await stack.enter_async_context(make_agent())
                work += [self._work(agent, missing, room, meter) for _ in range(workers)]

            await _together(work)
        self.all_made.set()

    async def _show(self, meter: ProgressBar, before: "_OpenRun | None") -> None:
        """Show the progress of this run when that of the run before has ended: a terminal has one bar."""
        if before is not None:
            await before.is_shown.wait()
        with meter:
            await self.all_made.wait()
        self.is_shown.set()

    async def _work(
        self,
        agent: Agent,
        missing: Iterator[tuple[Question, int]],
        room: asyncio.Semaphore,
        meter: ProgressBar,
    ) -> None:
        """Answer one missing question after the other; the run's workers share ``missing``."""
        while True:
            async with room:
                asked = next(missing, None)
                if asked is None:
                    return

                self.missing -= 1
                if not self.missing:
                    self.all_begun.set()
                stopwatch = Stopwatch()
                trajectory = await agent.answer(*asked)

            # First, so that a rollout whose line is whole has its times
            self._times.append(stopwatch.stop(trajectory))
            self._rollouts.append(trajectory)
            self._figures.add(trajectory)
            meter.advance(note=self._figures.note(meter.elapsed_s))
            self._check_servers(trajectory)

    def _check_servers(self, trajectory: Trajectory) -> None:
        """Raise EndpointError where the latest rollouts show that a server is gone."""
        is_server_failure = trajectory.stop_reason in SERVER_FAILURES
        self._failures_in_a_row = self._failures_in_a_row + 1 if is_server_failure else 0
        # Of a short run, which has no 16 rollouts
        finished = self._figures.finished
        nothing_else = self._figures.server_failures == finished == len(self._rollouts)

        if self._failures_in_a_row >= FAILURES_IN_A_ROW or nothing_else:
            raise EndpointError(
                f"{self._failures_in_a_row} rollouts in a row ended in {trajectory.stop_reason} "
                f"({trajectory.error}); {remedy(trajectory.error or '')} and repeat the "
                "command, finished rollouts are kept."
            )

    def write(self) -> TrajectoryFile:
        """Write the trajectories of a run that is finished."""
        count = write_jsonl(self._run.out, self._rollouts.rollouts())
        asked_again = len(self._rollouts.asked_again)
        artifact = TrajectoryFile(self._run.out, count, self._figures.server_failures, asked_again)

        if artifact.server_failures:
            _LOG.warning(
                "%s: a server failed %d of %d rollouts, which count as failed. `dvc repro --force "
                "--single-item STAGE` makes all rollouts of a stage again; paid answers are not asked "
                "for twice",
                self._run.label,
                artifact.server_failures,
                artifact.count,
            )

        return artifact


async def _answer_in_turn(runs: Sequence[_OpenRun], concurrency: int) -> None:
    """Make what is missing in runs that each miss something, ``concurrency`` rollouts at once on each server."""
    rooms = [asyncio.Semaphore(concurrency) for _ in range(runs[0].servers)]
    before: list[_OpenRun | None] = [None, *runs[:-1]]
    await _together(
        run.answer(rooms, concurrency, earlier) for run, earlier in zip(runs, before, strict=True)
    )


async def _together(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at once until all have ended; where one fails, cancel the others and raise its error."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    # No TaskGroup: Python 3.11's leaves this task marked as cancelled, which ends the agent's
    # session
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
