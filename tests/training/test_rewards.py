import math

import pytest

from deepsearch_rl.errors import UnknownNameError
from deepsearch_rl.records import Message, StopReason, Trajectory
from deepsearch_rl.training.rewards import Reward, ThinkLength, correct, think_format, think_length_score

NAMES = ("correct", "answer_format", "think_format", "short_think")


def rollout(*turns: str, answer: str = "", stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    return Trajectory(
        id="q#0",
        question_id="q",
        sample=0,
        question="Who?",
        golden_answers=("Ada Lovelace", "Countess of Lovelace"),
        model="policy",
        prompt="tiny",
        temperature=1.0,
        messages=tuple(Message(role="assistant", content=turn) for turn in turns),
        answer=answer,
        stop_reason=stop,
    )


def words(text: str) -> int:
    return len(text.split())


def thought(tokens: int) -> str:
    return f"<think>{'w ' * tokens}</think><answer>x</answer>"


def test_correct_is_twice_the_f1_over_all_golden_answers() -> None:
    assert correct(rollout(answer="ada lovelace")) == 2.0
    assert correct(rollout(answer="the countess of lovelace")) == 2.0
    assert correct(rollout(answer="Ada")) == pytest.approx(2 * 2 / 3)


def test_a_failed_rollout_scores_zero_in_every_part() -> None:
    failed = rollout(thought(50), answer="Ada Lovelace", stop=StopReason.TOKEN_BUDGET)
    assert Reward(NAMES, words).parts(failed) == dict.fromkeys(NAMES, 0.0)


def test_a_reward_is_the_sum_of_the_named_parts_only() -> None:
    parts = Reward(("correct", "answer_format"), words).parts(rollout(answer="Ada Lovelace"))
    assert parts == {"correct": 2.0, "answer_format": 0.5}


@pytest.mark.parametrize(
    ("turns", "score"),
    [
        (["<think>a</think>call", "<think>b</think><answer>x</answer>"], 0.5),
        (["<think>a</think>call", "<answer>x</answer>"], 0.0),
        (["<think> </think><answer>x</answer>"], 0.0),
        (["<think>a</think><think>b</think><answer>x</answer>"], 0.0),
        (["<answer>x</answer><think>late</think>"], 0.0),
        ([], 0.0),
    ],
)
def test_think_format_wants_one_filled_think_block_first_in_every_turn(turns: list[str], score: float) -> None:
    assert think_format(rollout(*turns)) == score


def test_reasoning_that_the_endpoint_returned_apart_counts_as_a_think_block() -> None:
    turn = Message(role="assistant", content="<answer>x</answer>", reasoning="because")
    assert think_format(rollout().model_copy(update={"messages": (turn,)})) == 0.5


@pytest.mark.parametrize(
    ("tokens", "score"),
    [(9, 0.0), (10, 1.0), (100, 1.0), (225, (1 + math.cos(math.pi / 4)) / 2), (350, 0.5), (600, 0.0)],
)
def test_think_length_falls_along_a_half_cosine(tokens: int, score: float) -> None:
    assert think_length_score(tokens, ThinkLength()) == pytest.approx(score)


def test_short_think_averages_turns_and_is_zero_if_one_turn_has_no_thought() -> None:
    reward = Reward(("short_think",), words)
    assert reward.parts(rollout(thought(50), thought(350)))["short_think"] == pytest.approx(0.5 * 0.75)
    assert reward.parts(rollout(thought(50), "<answer>x</answer>"))["short_think"] == 0.0


def test_an_unknown_reward_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match=r"'corect'.*'correct'"):
        Reward(("corect",), words)
