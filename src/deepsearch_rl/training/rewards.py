"""Rewards by name: each part scores one finished rollout; a rollout's reward is the sum of the parts that params name.

A failed rollout scores zero in every part, whatever it wrote. Definitions follow DeepSearch-RL's published rewards,
with one change: ``correct`` looks at all golden answers, not at the first alone.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deepsearch_rl.answers import f1
from deepsearch_rl.errors import UnknownNameError
from deepsearch_rl.records import Message, Trajectory

TokenCounter = Callable[[str], int]
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ThinkLength:
    """Token counts that shape ``short_think``: 0 below ``least``, full marks up to ``full``, 0 from ``most``."""

    least: int = 10
    full: int = 100
    most: int = 600


def correct(trajectory: Trajectory) -> float:
    """Twice the F1 of the answer over all golden answers; range 0 to 2."""
    return 2 * f1(trajectory.answer, trajectory.golden_answers)


def answer_format(trajectory: Trajectory) -> float:
    """0.5 if the extracted answer is not blank, else 0."""
    return 0.5 if trajectory.answer.strip() else 0.0


def think_format(trajectory: Trajectory) -> float:
    """0.5 if every assistant turn has exactly one non-empty think block before its tool call or answer, else 0."""
    turns = _assistant_texts(trajectory)
    return 0.5 if turns and all(_well_formed(turn) for turn in turns) else 0.0


def short_think(trajectory: Trajectory, count_tokens: TokenCounter, length: ThinkLength = ThinkLength()) -> float:
    """Half the mean over assistant turns of :func:`think_length_score`; range 0 to 0.5.

    Any turn without exactly one ``<think>...</think>`` pair makes the whole rollout score 0.
    """
    thoughts = [_THINK.findall(turn) for turn in _assistant_texts(trajectory)]
    if not thoughts or any(len(found) != 1 for found in thoughts):
        return 0.0
    scores = [think_length_score(count_tokens(found[0]), length) for found in thoughts]
    return 0.5 * sum(scores) / len(scores)


def think_length_score(tokens: int, length: ThinkLength) -> float:
    """1 between ``least`` and ``full`` tokens, falling along a half cosine to 0 at ``most``; 0 outside."""
    if tokens < length.least or tokens >= length.most:
        return 0.0
    if tokens <= length.full:
        return 1.0
    return (1 + math.cos(math.pi * (tokens - length.full) / (length.most - length.full))) / 2


def _assistant_texts(trajectory: Trajectory) -> list[str]:
    return [_text(message) for message in trajectory.messages if message.role == "assistant"]


def _text(message: Message) -> str:
    """The turn as the model wrote it; a thought that the endpoint returned apart is put back in its tags."""
    return message.content if message.reasoning is None else f"<think>{message.reasoning}</think>{message.content}"


def _well_formed(turn: str) -> bool:
    found = _THINK.findall(turn)
    tags = turn.count("<think>"), turn.count("</think>")
    before = turn.partition("<think>")[0]
    return tags == (1, 1) and len(found) == 1 and bool(found[0].strip()) and "<answer>" not in before


PARTS = frozenset({"correct", "answer_format", "think_format", "short_think"})
"""Names that ``rl.rewards`` may hold."""


@dataclass(frozen=True, slots=True)
class Reward:
    """The sum of named parts.

    Args:
        names: parts, each of :data:`PARTS`.
        count_tokens: counts a thought's tokens with the policy's tokenizer; only ``short_think`` uses it.

    Raises:
        UnknownNameError: a name is not a reward.
    """

    names: Sequence[str]
    count_tokens: TokenCounter

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in PARTS:
                raise UnknownNameError("reward", name, PARTS)

    def parts(self, trajectory: Trajectory) -> Mapping[str, float]:
        """Every named part of one rollout; all zero if it failed."""
        scorers: dict[str, Callable[[Trajectory], float]] = {
            "correct": correct,
            "answer_format": answer_format,
            "think_format": think_format,
            "short_think": lambda rollout: short_think(rollout, self.count_tokens),
        }
        return {name: 0.0 if trajectory.failed else scorers[name](trajectory) for name in self.names}
