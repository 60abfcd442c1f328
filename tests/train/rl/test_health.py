"""Alarms on logs of toy runs: one that must give each alarm, and one beside it that must not."""

import re

import pytest

from deepsearch_rl.train.curves import TrainingStep
from deepsearch_rl.train.rl.health import ALARMS, WINDOW, AlarmWatch, gate_warning

STEPS = 20


def watched(lines: list[TrainingStep]) -> AlarmWatch:
    watch = AlarmWatch()
    for line in lines:
        watch.add(line)
    return watch


def log(**metrics: tuple[float, float]) -> list[TrainingStep]:
    """Return a run whose metrics go in a straight line from one value to the other."""
    lines = [TrainingStep.model_validate({"step": 0, "dev_f1": 0.1})]
    for step in range(1, STEPS + 1):
        share = (step - 1) / (STEPS - 1)
        values = {
            name.replace("__", "/"): start + share * (end - start)
            for name, (start, end) in metrics.items()
        }
        lines.append(TrainingStep.model_validate({"step": step, **values}))
    return lines


def spiked(metric: str, factor: float) -> list[TrainingStep]:
    """Return a steady run whose last step has a metric so many times as large."""
    *lines, last = log(**{metric: (0.5, 0.6)})
    return [*lines, TrainingStep.model_validate({"step": last.step, metric: 0.55 * factor})]


def ended_at_limit_early() -> list[TrainingStep]:
    """Return a run whose first steps alone had rollouts that ended at their limit of tokens."""
    early = log(failures__token_budget=(0.6, 0.6))[: WINDOW + 1]
    return [*early, *log()[WINDOW + 1 :]]


PROVOKED = {
    "answer_avoidance": (
        log(refusals=(0.1, 0.6), reward=(0.8, 0.7)),
        [log(refusals=(0.1, 0.6), reward=(0.8, 1.2)), log(refusals=(0.1, 0.15), reward=(0.8, 0.7))],
    ),
    "search_collapse": (
        log(tool_calls=(2.4, 0.7)),
        [log(tool_calls=(2.4, 1.8)), log(tool_calls=(1.1, 1.0)), log(tool_calls=(1.5, 4.0))],
    ),
    "search_limit": (
        log(at_search_limit=(0.1, 1.0)),
        [log(at_search_limit=(0.1, 0.5)), log(at_search_limit=(0.9, 1.0))],
    ),
    "entropy_collapse": (
        [
            *log(entropy=(0.5, 0.3)),
            *(
                TrainingStep.model_validate({"step": step, "entropy": 0.01})
                for step in range(21, 26)
            ),
        ],
        [log(entropy=(0.5, 0.2)), log(entropy=(0.0, 0.0))],
    ),
    "right_answers_unlikely": (
        log(logprob_positive=(-0.2, -0.6)),
        [
            log(logprob_positive=(-0.6, -0.2)),
            log(logprob_positive=(-0.2, -0.22)),
            log(logprob_positive=(0.0, 0.0)),
        ],
    ),
    "mismatch_growing": (
        log(mismatch_median=(0.001, 0.03)),
        [log(mismatch_median=(0.004, 0.006)), log(mismatch_median=(1e-7, 1e-4))],
    ),
    "no_signal": (log(groups_without_signal=(0.3, 1.0)), [log(groups_without_signal=(0.3, 0.7))]),
    "length_limit": (
        log(failures__token_budget=(0.0, 0.5)),
        [log(failures__token_budget=(0.2, 0.1)), log(), ended_at_limit_early()],
    ),
    "spike": (
        spiked("grad_norm", 50),
        [spiked("grad_norm", 3), spiked("loss", 50), log(grad_norm=(0.0, 0.0))],
    ),
}


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_is_given_by_its_run_alone(name: str) -> None:
    bad, good_runs = PROVOKED[name]
    assert set(watched(bad).now) == {name}
    for good in good_runs:
        assert not watched(good).now


def test_a_short_run_gives_no_alarm_that_compares_with_its_start() -> None:
    bad = PROVOKED["search_collapse"][0]
    assert not watched(bad[: 2 * WINDOW]).now


def test_an_alarm_is_listed_at_the_step_at_which_it_began() -> None:
    calm = [
        TrainingStep.model_validate({"step": step, "groups_without_signal": 0.0})
        for step in range(6)
    ]
    loud = [
        TrainingStep.model_validate({"step": step, "groups_without_signal": 1.0})
        for step in range(6, 12)
    ]
    calm_again = [
        TrainingStep.model_validate({"step": step, "groups_without_signal": 0.0})
        for step in range(12, 16)
    ]
    loud_again = [
        TrainingStep.model_validate({"step": step, "groups_without_signal": 1.0})
        for step in range(16, 22)
    ]
    watch = watched([*calm, *loud, *calm_again, *loud_again])
    steps = [alarm.step for alarm in watch.began]
    assert steps == [9, 19], "four of the last five steps have no signal"


@pytest.mark.parametrize(
    ("pass_1", "pass_k", "says"),
    [
        (0.0, 0.01, "nothing to reward"),
        (0.5, 0.51, "nothing to find"),
        (0.2, 0.6, "the start is weak .* rl.gate.min_f1 is 0.3"),
        (0.5, 0.8, "^$"),
    ],
)
def test_the_gate_says_what_rl_can_find(pass_1: float, pass_k: float, says: str) -> None:
    assert re.search(says, gate_warning(pass_1, pass_k, 8, 0.3))
