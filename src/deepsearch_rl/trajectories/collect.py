"""Answering many questions: bounded concurrency, a log that a killed run continues, a canonical artifact at the end.

Finished rollouts go to an append-only log under ``work/`` whose name is a digest of everything that determines them
(:func:`log_path`), so that a changed parameter starts afresh and an unchanged one resumes. Rollouts that a broken
server ended are tried again by a resumed run; when a long row of them shows that a server is gone, the run stops.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeAlias

from pydantic import JsonValue

from deepsearch_rl.answers import f1
from deepsearch_rl.errors import EndpointError
from deepsearch_rl.files import AppendLog, read_jsonl, sha256_json, write_jsonl
from deepsearch_rl.progress import Meter
from deepsearch_rl.records import Question, StopReason, Trajectory

Answer: TypeAlias = Callable[[Question, int], Awaitable[Trajectory]]
"""Answers a question for the given sample number, from 0."""
SERVER_FAILURES = frozenset({StopReason.MODEL_ERROR, StopReason.TOOL_ERROR})
"""Rollouts that ended because a server failed, not because of what the model wrote."""
FAILURES_IN_A_ROW = 16
"""So many server failures in a row mean that the server is gone."""
WORK = Path("work")


class Agent(Protocol):
    """Anything that answers questions, e.g. :class:`deepsearch_rl.agent.rollout.SearchAgent`."""

    async def answer(self, question: Question, sample: int) -> Trajectory:
        """Answer one question; a bad rollout is a trajectory, not an exception."""
        ...


def log_path(stage: str, determined_by: JsonValue) -> Path:
    """Where a stage keeps its log: ``work/<stage>/<digest of what determines the result>.jsonl``."""
    return WORK / stage / f"{sha256_json(determined_by)[:16]}.jsonl"


def collect(
    questions: Sequence[Question],
    samples: int,
    make_agent: Callable[[], AbstractAsyncContextManager[Agent]],
    log: Path,
    concurrency: int,
    label: str,
) -> list[Trajectory]:
    """Answer every question ``samples`` times and return the trajectories sorted by id.

    Args:
        questions: with distinct ids.
        samples: answers per question.
        make_agent: opens the agent; not called where the log already holds everything.
        log: from :func:`log_path`; finished rollouts are read from it and appended to it.
        concurrency: rollouts at once.
        label: what the progress line calls this.

    Raises:
        EndpointError: a server failed many rollouts in a row.
        RecordError: a line of the log is not a trajectory.
    """

    async def run() -> list[Trajectory]:
        with _Collection(questions, samples, log, label) as collection:
            if collection.remaining:
                async with make_agent() as agent:
                    await collection.run(agent.answer, concurrency)
            return collection.finished()

    return asyncio.run(run())


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Write an artifact of trajectories, sorted by id, by one rename; return how many there are."""
    return write_jsonl(path, sorted(trajectories, key=_by_id))


def read_trajectories(path: Path) -> list[Trajectory]:
    """The trajectories of an artifact, in its order.

    Raises:
        ArtifactError: the file does not exist.
        RecordError: a line is not a trajectory.
    """
    return list(read_jsonl(path, Trajectory))


def _by_id(trajectory: Trajectory) -> tuple[str, int]:
    return trajectory.question_id, trajectory.sample


class _Collection:
    """The rollouts that are wanted, those that the log already holds, and the running score."""

    def __init__(self, questions: Sequence[Question], samples: int, log: Path, label: str) -> None:
        wanted = {f"{question.id}#{sample}": (question, sample) for question in questions for sample in range(samples)}
        self._log = AppendLog(log)
        logged = (record for record in read_jsonl(log, Trajectory) if record.stop_reason not in SERVER_FAILURES)
        self._done = {record.id: record for record in logged if record.id in wanted}
        self.remaining = [pair for id_, pair in wanted.items() if id_ not in self._done]
        self._meter = Meter(label, len(wanted), "rollouts")
        self._f1_sum = sum(f1(record.answer, record.golden_answers) for record in self._done.values())
        self._failed = sum(record.failed for record in self._done.values())
        self._server_failures = 0

    def __enter__(self) -> "_Collection":
        self._meter.__enter__()
        self._meter.advance(len(self._done))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._meter.__exit__(*exc_info)
        self._log.close()

    def finished(self) -> list[Trajectory]:
        return sorted(self._done.values(), key=_by_id)

    async def run(self, answer: Answer, concurrency: int) -> None:
        todo = iter(self.remaining)
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(concurrency, len(self.remaining))):
                    workers.create_task(self._work(answer, todo))
        except ExceptionGroup as group:  # one error is enough for a reader
            raise group.exceptions[0] from group
        if self._done and all(record.stop_reason in SERVER_FAILURES for record in self._done.values()):
            raise _server_gone(len(self._done), next(iter(self._done.values())))

    async def _work(self, answer: Answer, todo: Iterator[tuple[Question, int]]) -> None:
        for question, sample in todo:
            self._add(await answer(question, sample))

    def _add(self, trajectory: Trajectory) -> None:
        self._log.append(trajectory)
        self._done[trajectory.id] = trajectory
        self._f1_sum += f1(trajectory.answer, trajectory.golden_answers)
        self._failed += trajectory.failed
        self._meter.advance(note=f"F1 {self._f1_sum / len(self._done):.3f}, {self._failed} failed")
        self._server_failures = self._server_failures + 1 if trajectory.stop_reason in SERVER_FAILURES else 0
        if self._server_failures >= FAILURES_IN_A_ROW:
            raise _server_gone(self._server_failures, trajectory)


def _server_gone(count: int, last: Trajectory) -> EndpointError:
    return EndpointError(
        f"{count} rollouts in a row ended in {last.stop_reason} ({last.error}); "
        "start the server again and repeat the command, finished rollouts are kept."
    )
