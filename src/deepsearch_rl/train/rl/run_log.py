"""The log of an RL run: a line per step with the alarms that it gives, and what the lines decide.

They decide which step is published, and whether a run ends early.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from deepsearch_rl.train.curves import Alarm, TrainingStep, record_step
from deepsearch_rl.train.rl.health import AlarmWatch
from deepsearch_rl.train.rl.rl_config import RlConfig

TRAIN_LOG = "train_log.jsonl"
_LOG = logging.getLogger(__name__)


class RunLog:
    """The lines of a run so far, step 0 first, and their alarms; ``run`` names it in messages."""

    def __init__(self, run: str, lines: Iterable[TrainingStep]) -> None:
        self.run = run
        self.lines: list[TrainingStep] = []
        self.alarms = AlarmWatch()

        for line in lines:
            self.lines.append(line)
            self.alarms.add(line)

    def add(self, figures: Mapping[str, float | None]) -> TrainingStep:
        """Add the next step to log and curve and return its line, which has a metric for each alarm.

        Say the alarms that begin.
        """
        line, new = self._add(figures)
        for alarm in new:
            _LOG.warning("%s, step %d, %s: %s.", self.run, alarm.step, alarm.name, alarm.reason)

        record_step(line.model_dump(), new)
        return line

    def restore(self, figures: Mapping[str, float | None]) -> None:
        """Add a step that an earlier start has added, as its engine logged it: nothing is said or recorded again."""
        self._add(figures)

    def _add(self, figures: Mapping[str, float | None]) -> tuple[TrainingStep, list[Alarm]]:
        """Return the line of a step with a metric for each alarm, and the alarms that begin."""
        new = self.alarms.add(TrainingStep.model_validate(figures))
        # As metrics, so that a curve shows when an alarm began and ended
        metrics = {f"alarm/{name}": 1.0 for name in self.alarms.now}
        line = TrainingStep.model_validate({**figures, **metrics})
        self.lines.append(line)
        return line, new

    def is_stopped(self, config: RlConfig) -> bool:
        """Return whether the run ends early: ``rl.patience`` dev scores in a row were not better than the best."""
        best = best_line(self.lines).step
        since = sum(line.dev_f1 is not None and line.step > best for line in self.lines)
        return config.patience is not None and since >= config.patience

    def kept_steps(self, count: int) -> set[int]:
        """Return the steps whose checkpoints are kept: the newest ``count``, and the best so far after each of them.

        One best step is not enough, because the newest checkpoints may turn out to be damaged.
        """
        kept: set[int] = set()
        for end in range(len(self.lines), max(0, len(self.lines) - count), -1):
            kept |= {self.lines[end - 1].step, best_line(self.lines[:end]).step}

        return kept


def best_line(lines: Sequence[TrainingStep]) -> TrainingStep:
    """Return the line with the best dev F1, the earliest of equals; without any, the first line."""
    evaluated = [line for line in lines if line.dev_f1 is not None]
    return max(evaluated, key=lambda line: (line.dev_f1 or 0.0, -line.step), default=lines[0])
