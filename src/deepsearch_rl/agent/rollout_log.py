"""Which rollouts of a bulk run are done, and where in its log each of them stands."""

from array import array
from collections.abc import Iterator, Sequence

from deepsearch_rl.core.errors import RecordError
from deepsearch_rl.core.files import AppendLog, parse_record
from deepsearch_rl.core.records import SERVER_FAILURES, Question, Trajectory

_MISSING = -1


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
