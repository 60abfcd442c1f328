"""Paired differences between two models that answered the same questions, with corrected p-values."""

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import Field

from deepsearch_rl.core.answers import SUCCESS_F1
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.evaluate.f1_row import Rounded
from deepsearch_rl.evaluate.score import (
    TOOL_CALLS,
    QuestionScores,
    paired_differences,
)

# A tenth of the draws of a whole set, since there are many types
TYPE_DRAWS = 10
DifferenceT = TypeVar("DifferenceT", bound="Difference")


class Change(Record):
    """One model minus another in the mean of a figure, over the same questions."""

    difference: Rounded
    low: Rounded = Field(description="lower end of the paired 95 % bootstrap interval")
    high: Rounded
    p_value: Rounded = Field(
        description="two-sided paired permutation test, as if it were the only one"
    )
    p_holm: Rounded | None = Field(
        default=None,
        description="corrected for all tests of its table; null where nothing corrected it",
    )


class Difference(Change):
    """One model minus another in F1."""

    n: int = Field(ge=1, description="questions")
    tool_calls: Change = Field(description="the same in searches asked for per rollout")


class TypeDifference(Difference):
    """The difference over the questions of one type, and the ids of those that turned.

    A question is right where the mean F1 of its answers is :data:`SUCCESS_F1` or more.
    """

    gained: tuple[str, ...] = Field(
        description="questions that only the model has right, not the other"
    )
    lost: tuple[str, ...] = Field(description="questions that only the other has right")


class Comparison(Difference):
    """``model`` minus ``other`` on one question set."""

    dataset: NonEmpty
    temperature: float
    greedy_only: bool = Field(
        default=False,
        exclude_if=lambda is_greedy: not is_greedy,
        description="the main figures are of greedy answers; written where true",
    )
    model: NonEmpty
    other: NonEmpty
    types: dict[str, TypeDifference] = Field(
        default={}, description="by type of question, where they have one"
    )

    @property
    def run_name(self) -> str:
        """The question set, and whether greedy answers beside sampled ones are compared, as in a row's ``run_name``."""
        return self.dataset if self.main else f"{self.dataset}, greedy"

    @property
    def main(self) -> bool:
        """Whether main figures are compared."""
        return self.temperature > 0 or self.greedy_only


def is_nothing(comparison: Comparison) -> bool:
    """Return whether no question got another score or another number of searches."""
    changes = (comparison, comparison.tool_calls)
    return all(change.difference == change.low == change.high == 0 for change in changes)


def difference_fields(
    first: QuestionScores, second: QuestionScores, seed: int, draws: int
) -> dict[str, Any]:
    """Return the fields of a :class:`Difference`."""
    changes = {}
    for name, paired in paired_differences(first, second, seed, draws, ("f1", TOOL_CALLS)).items():
        changes[name] = {"difference": paired.mean, **paired.model_dump(exclude={"mean"})}

    return {"n": len(first.question_ids), TOOL_CALLS: changes[TOOL_CALLS], **changes["f1"]}


def type_differences(
    first: QuestionScores, second: QuestionScores, seed: int, draws: int
) -> dict[str, TypeDifference]:
    """Return the differences by type of question, which are a table of their own."""
    types = first.type_names
    differences: list[TypeDifference] = []
    for kind in types:
        of_type = _type_difference(first.of_type(kind), second.of_type(kind), seed, draws)
        differences.append(of_type)

    return dict(zip(types, corrected(differences), strict=True))


def _type_difference(
    first: QuestionScores, second: QuestionScores, seed: int, draws: int
) -> TypeDifference:
    first_Q = first.metrics["f1"] >= SUCCESS_F1
    second_Q = second.metrics["f1"] >= SUCCESS_F1
    return TypeDifference(
        **difference_fields(first, second, seed, draws),
        gained=tuple(itertools.compress(first.question_ids, first_Q & ~second_Q)),
        lost=tuple(itertools.compress(first.question_ids, second_Q & ~first_Q)),
    )


def corrected(differences: Sequence[DifferenceT]) -> list[DifferenceT]:
    """Return the differences of one table with its corrected p-values: all of F1 and of searches are one family."""
    f1_tests: list[float] = []
    search_tests: list[float] = []
    for difference in differences:
        f1_tests.append(difference.p_value)
        search_tests.append(difference.tool_calls.p_value)

    # As many decimals as `Rounded` has, which a copy of a record does not apply
    p_holm = [round(p_value, 6) for p_value in holm([*f1_tests, *search_tests])]

    result: list[DifferenceT] = []
    for position, difference in enumerate(differences):
        tool_calls = difference.tool_calls.model_copy(
            update={"p_holm": p_holm[len(differences) + position]}
        )
        changes = {"p_holm": p_holm[position], "tool_calls": tool_calls}
        result.append(difference.model_copy(update=changes))

    return result


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the corrected p-value of every test, in [0, 1] and in the order of ``p_values``.

    The smallest of m p-values is multiplied by m, the next one by m - 1, and so on; none is smaller
    than the one before it (Holm 1979, A simple sequentially rejective multiple test procedure,
    Scandinavian Journal of Statistics 6, 65-70; ``p.adjust(p, "holm")`` of R).
    """
    ascending = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = [1.0] * len(p_values)
    largest = 0.0

    for rank, position in enumerate(ascending):
        remaining_tests = len(p_values) - rank
        largest = max(largest, remaining_tests * p_values[position])
        corrected[position] = min(1.0, largest)

    return corrected
