"""What the progress line of a bulk run says."""

import pytest

from deepsearch_rl.agent.collect import RunningFigures
from deepsearch_rl.core.records import StopReason, TokenUsage
from tests.agent.scripted import make_questions, make_trajectory

[QUESTION] = make_questions(1)


def test_a_failed_rollout_counts_as_zero_and_by_its_kind() -> None:
    figures = RunningFigures()
    kinds = [
        StopReason.TOKEN_BUDGET,
        StopReason.MODEL_ERROR,
        StopReason.TOKEN_BUDGET,
        StopReason.ANSWERED,
    ]
    for sample, reason in enumerate(kinds):
        figures.add(make_trajectory(QUESTION, sample, reason))
    assert figures.note(1.0) == "F1 0.250, 2 token_budget, 1 model_error, - tokens/s"


def test_kinds_of_equal_number_stand_in_the_order_of_their_names() -> None:
    figures = RunningFigures()
    for sample, reason in enumerate([StopReason.TURN_BUDGET, StopReason.DEADLINE]):
        figures.add(make_trajectory(QUESTION, sample, reason))
    assert figures.note(1.0).startswith("F1 0.000, 1 deadline, 1 turn_budget, ")


def test_tokens_per_second_are_those_that_this_run_was_written() -> None:
    figures = RunningFigures()
    usage = (
        TokenUsage(prompt_tokens=1000, completion_tokens=30),
        TokenUsage(prompt_tokens=2000, completion_tokens=50),
    )
    figures.add(make_trajectory(QUESTION, 0, usage=usage), resumed=True)
    assert figures.note(4.0) == "F1 1.000, none failed, - tokens/s"
    figures.add(make_trajectory(QUESTION, 1, usage=usage))
    assert figures.note(4.0) == "F1 1.000, none failed, 20 tokens/s"
    assert figures.note(0.0).endswith(" - tokens/s")


def test_the_running_f1_of_nothing_is_zero() -> None:
    assert RunningFigures().note(1.0) == "F1 0.000, none failed, - tokens/s"
    assert RunningFigures().finished == 0


@pytest.mark.parametrize(
    ("kinds", "server_failures"),
    [
        ([], 0),
        ([StopReason.MODEL_ERROR, StopReason.TOOL_ERROR], 2),
        ([StopReason.MODEL_ERROR, StopReason.DEADLINE], 1),
        ([StopReason.MODEL_ERROR, StopReason.ANSWERED], 1),
    ],
)
def test_rollouts_that_servers_failed_are_counted(
    kinds: list[StopReason], server_failures: int
) -> None:
    figures = RunningFigures()
    for sample, reason in enumerate(kinds):
        figures.add(make_trajectory(QUESTION, sample, reason))
    assert (figures.finished, figures.server_failures) == (len(kinds), server_failures)
