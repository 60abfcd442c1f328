"""The score by which checkpoints are compared, of SFT and of RL alike: mean F1 of rollouts on dev questions."""

from collections.abc import Sequence
from statistics import fmean

from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.records import Trajectory


def f1_by_question(rollouts_QG: Sequence[Sequence[Trajectory]]) -> list[list[float]]:
    """Return the F1 of every rollout, in [0, 1]; a failed one scores 0."""
    return [[score_rollout(trajectory).f1 for trajectory in group] for group in rollouts_QG]


def mean_f1(f1_QG: Sequence[Sequence[float]]) -> tuple[float, list[float]]:
    """Return the mean over questions, each of which counts once, and the means of the questions."""
    f1_Q = [fmean(f1_G) for f1_G in f1_QG]
    return fmean(f1_Q), f1_Q
