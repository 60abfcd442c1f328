"""What the progress line of a bulk run says of its rollouts."""

from collections import Counter
from dataclasses import dataclass, field

from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.records import SERVER_FAILURES, StopReason, Trajectory


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
