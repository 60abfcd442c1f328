"""What the progress line of a bulk run says."""

import math

import pytest

from deepsearch_rl.records import StopReason, TokenUsage
from deepsearch_rl.trajectories.running_figures import RunningFigures
from tests.trajectories.scripted import make_questions, make_trajectory

[QUESTION] = make_questions(1)


def test_a_failed_rollout_counts_as_zero_and_by_its_kind():
    figures = RunningFigures()
    kinds = [StopReason.TOKEN_BUDGET, StopReason.MODEL_ERROR, StopReason.TOKEN_BUDGET, StopReason.ANSWERED]
    for sample, reason in enumerate(kinds):
        figures.add(make_trajectory(QUESTION, sample, reason))
    assert figures.note(1.0) == "F1 0.250, 2 token_budget, 1 model_error, - tokens/s"


def test_kinds_of_equal_number_stand_in_the_order_of_their_names():
    figures = RunningFigures()
    for sample, reason in enumerate([StopReason.TURN_BUDGET, StopReason.DEADLINE]):
        figures.add(make_trajectory(QUESTION, sample, reason))
    assert figures.note(1.0).startswith("F1 0.000, 1 deadline, 1 turn_budget, ")


def test_tokens_per_second_are_those_that_this_run_was_written():
    figures = RunningFigures()
    usage = (TokenUsage(prompt_tokens=1000, completion_tokens=30), TokenUsage(prompt_tokens=2000, completion_tokens=50))
    figures.add_resumed(make_trajectory(QUESTION, 0, usage=usage))
    assert figures.note(4.0) == "F1 1.000, none failed, - tokens/s"
    figures.add(make_trajectory(QUESTION, 1, usage=usage))
    assert figures.note(4.0) == "F1 1.000, none failed, 20 tokens/s"
    assert figures.note(0.0).endswith(" - tokens/s")


def test_the_running_f1_of_nothing_is_zero():
    assert math.isclose(RunningFigures().f1, 0.0)
    assert RunningFigures().finished == 0


@pytest.mark.parametrize(
    ("kinds", "servers_alone"),
    [
        ([], False),
        ([StopReason.MODEL_ERROR, StopReason.TOOL_ERROR], True),
        ([StopReason.MODEL_ERROR, StopReason.DEADLINE], False),
        ([StopReason.MODEL_ERROR, StopReason.ANSWERED], False),
    ],
)
def test_a_run_that_servers_alone_failed_is_known(kinds: list[StopReason], servers_alone: bool):
    figures = RunningFigures()
    for sample, reason in enumerate(kinds):
        figures.add(make_trajectory(QUESTION, sample, reason))
    assert figures.all_failed_by_servers is servers_alone
