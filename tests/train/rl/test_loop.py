"""The loop against an engine of a few lines that knows no model: what the loop itself decides, checks and writes."""

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.chat.chat_format import load_chat_format
from deepsearch_rl.chat.prompts import TrainedWith, read_trained_with, served_with
from deepsearch_rl.core.errors import ArtifactError, ConfigError, EndpointError, UnknownNameError
from deepsearch_rl.core.files import read_jsonl, write_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question, StopReason
from deepsearch_rl.train.curves import CurveLine, TrainingStep, recorded_curve
from deepsearch_rl.train.finite import NotFiniteError
from deepsearch_rl.train.rl.loop import train_policy
from deepsearch_rl.train.rl.rl_config import DevConfig, RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask, RlTrainer, Rollout, RolloutSampling
from deepsearch_rl.train.rl.rollouts import batch
from deepsearch_rl.train.rl.run_log import RunLog, best_line
from deepsearch_rl.train.rl.task_checks import policy_text
from deepsearch_rl.train.rl.watchdog import Beat, run_watched
from tests.train.rl.tiny_trainer import TinyTrainer

Train = Callable[..., TinyTrainer]


@pytest.fixture
def config(smoke: Profile) -> RlConfig:
    dev = {"every": 2, "questions": 2, "samples": 1, "temperature": 0.7}
    changes = {
        "epochs": 2.0,
        "groups_per_step": 2,
        "group_size": 4,
        "steps": {"base": 3},
        "rewards": {"f1": 2.0},
        "dev": dev,
        "gate": {"questions": 2, "samples": 3, "min_f1": 0.4},
    }
    return RlConfig.model_validate({**smoke.section("rl", RlConfig).model_dump(), **changes})


@pytest.fixture
def task(policy_folder: Path, smoke: Profile, tmp_path: Path) -> RlTask:
    questions = [
        Question(id=f"q{n}", question=f"What is {n}?", golden_answers=(f"number {n}",))
        for n in range(7)
    ]
    return RlTask(
        start=policy_folder,
        start_name="base",
        weights="digest",
        train=questions[:5],
        dev=questions[5:],
        agent=smoke.section("agent", AgentConfig),
        retrieval_url="http://127.0.0.1:9",
        scratch=tmp_path / "work",
        seed=0,
    )


@pytest.fixture
def train(task: RlTask, config: RlConfig, tmp_path: Path) -> Train:
    """Train with the tiny engine into ``adapter`` and return that engine."""

    def run(
        steps: int = 3,
        ends: Mapping[int, StopReason] | None = None,
        easy: Collection[str] = (),
        **changes: object,
    ) -> TinyTrainer:
        trainer: RlTrainer = TinyTrainer(task.scratch / "checkpoints", ends, easy)
        settings = config.model_copy(update={"steps": {"base": steps}, **changes})
        train_policy(task, settings, trainer, tmp_path / "adapter")
        assert isinstance(trainer, TinyTrainer)
        return trainer

    return run


def logged(folder: Path) -> list[TrainingStep]:
    return list(read_jsonl(folder / "train_log.jsonl", TrainingStep))


def test_the_loop_asks_an_engine_for_one_update_per_step_and_a_dev_score_where_params_say(
    train: Train,
) -> None:
    step = ["roll out 2 x 4", "update from 8"]
    dev = ["roll out 2 x 1"]
    gate = ["roll out 2 x 3"]
    assert train().calls == ["start 0", *gate, *dev, *step, *step, *dev, *step, *dev, "close"]


def test_gate_and_dev_score_of_the_start_are_two_phases_for_the_watchdog(train: Train) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as pipe:
        # In a context of its own: the process of later tests is not watched
        assert copy_context().run(run_watched, lambda: train(steps=1), writing) == 0
        os.close(writing)
        beats = [Beat.model_validate_json(line) for line in pipe]

    assert [(beat.phase, beat.step) for beat in beats] == [
        ("start", 0),
        *[("dev", 0), ("dev", 0), ("save", 0)],
        *[("roll out", 1), ("update", 1), ("dev", 1), ("save", 1)],
    ]


def test_the_log_has_a_line_per_step_with_the_rewards_f1_and_the_engines_own_metrics(
    train: Train, tmp_path: Path
) -> None:
    with recorded_curve(tmp_path / "curve.jsonl"):
        train()
    lines = logged(tmp_path / "adapter")
    *steps, end = read_jsonl(tmp_path / "curve.jsonl", CurveLine)
    assert [{"step": line.step, **line.metrics} for line in steps] == [
        line.model_dump(exclude_none=True) for line in lines
    ]
    assert end.end == "FINISHED"
    assert [(line.step, line.dev_f1) for line in lines] == [(0, 0.0), (1, None), (2, 1.0), (3, 1.0)]
    assert lines[0].metrics == {"dev_f1": 0.0, "dev_f1_se": 0.0, "pass_1": 1 / 3, "pass_k": 1.0}
    assert lines[1].metrics["reward_se"] == 0.0, "of the questions' means, which are equal"
    assert lines[1].metrics["reward"] == lines[1].metrics["reward/f1"] == 0.5
    assert [line.metrics["f1"] for line in lines[1:]] == [0.25, 0.5, 0.75]
    assert lines[3].metrics["loss"] == -1.0


def test_a_damaged_best_checkpoint_ends_a_resumed_run_before_its_next_step(
    train: Train, task: RlTask
) -> None:
    train()
    (task.scratch / "checkpoints" / "2").unlink()
    before = (task.scratch / "train_log.jsonl").read_bytes()
    with pytest.raises(ArtifactError, match="2 is missing"):
        train(steps=4)
    assert (task.scratch / "train_log.jsonl").read_bytes() == before


def test_the_earliest_of_equally_good_checkpoints_is_published_with_its_manifest(
    train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = train()
    assert "rl@base: the start is weak" in caplog.text
    manifest = json.loads((tmp_path / "adapter" / "manifest.json").read_text())
    assert (manifest["steps"], manifest["best_step"], manifest["best_dev_f1"]) == (3, 2, 1.0)
    assert (manifest["device"], manifest["dtype"], manifest["alarms"]) == ("none", "int", [])
    assert manifest["gate"] == {"pass_1": 1 / 3, "pass_k": 1.0, "samples": 3}
    assert "the start is weak" in manifest["gate_warning"]
    assert (tmp_path / "adapter" / "adapter").read_text() == "0.75"
    assert {path.name for path in trainer.folder.iterdir()} == {"2", "3"}, (
        "only the newest and the best are kept"
    )


def test_a_start_of_another_prompt_is_refused_and_an_adapter_says_what_it_was_trained_with(
    task: RlTask, config: RlConfig, tmp_path: Path
) -> None:
    start = shutil.copytree(task.start, tmp_path / "start")
    served = served_with(start, task.agent.prompt_digests())
    settings = config.model_copy(update={"steps": {"base": 1}})

    def train_from(trained: TrainedWith) -> None:
        write_json(start / "manifest.json", {"trained_with": trained.model_dump()})
        trainer: RlTrainer = TinyTrainer(task.scratch / "checkpoints", None, ())
        train_policy(replace(task, start=start), settings, trainer, tmp_path / "adapter")

    with pytest.raises(
        ConfigError,
        match=r"another system prompt than that of the agent \(agent\.prompt: .*tiny\.txt\)",
    ):
        train_from(served.model_copy(update={"prompt": "other"}))
    assert not task.scratch.exists()
    train_from(served)
    assert read_trained_with(tmp_path / "adapter") == served


def test_a_killed_run_continues_after_its_last_logged_step(
    train: Train, task: RlTask, tmp_path: Path
) -> None:
    train(steps=2)
    log = task.scratch / "train_log.jsonl"
    before = log.read_text()
    log.write_text(before + '{"step": 3, "rew')  # what a kill in mid-write leaves
    (task.scratch / "checkpoints" / "3").write_text("0.99")
    trainer = train()
    assert trainer.calls[:2] == ["start 2", "roll out 2 x 4"]
    assert [line.step for line in logged(tmp_path / "adapter")] == [0, 1, 2, 3]
    assert log.read_text().startswith(before)
    assert (trainer.folder / "3").read_text() == "1.0"


def test_a_damaged_newest_checkpoint_is_made_again_and_the_log_ends_as_it_would_have(
    train: Train, task: RlTask, tmp_path: Path
) -> None:
    train()
    whole = (tmp_path / "adapter" / "train_log.jsonl").read_text()
    (task.scratch / "checkpoints" / "3").unlink()
    trainer = train()
    assert trainer.calls == [
        "start 3",
        "roll out 2 x 4",
        "update from 8",
        "roll out 2 x 1",
        "close",
    ]
    assert (tmp_path / "adapter" / "train_log.jsonl").read_text() == whole
    assert (trainer.folder / "3").read_text() == "1.0"


def test_a_run_stops_after_patience_evaluations_without_a_better_dev_score(
    train: Train, tmp_path: Path
) -> None:
    dev = DevConfig(every=1, questions=2, samples=1, temperature=0.7)
    trainer = train(steps=5, epochs=9.0, dev=dev, patience=2)
    lines = logged(tmp_path / "adapter")
    assert [(line.step, line.dev_f1) for line in lines] == [
        (0, 0.0),
        (1, 0.0),
        (2, 1.0),
        (3, 1.0),
        (4, 1.0),
    ]
    assert json.loads((tmp_path / "adapter" / "manifest.json").read_text())["best_step"] == 2
    assert trainer.calls[-1] == "close"
    resumed = train(steps=5, epochs=9.0, dev=dev, patience=2)
    assert resumed.calls == ["start 4", "close"]


def test_the_dev_score_is_the_mean_over_all_samples(train: Train, tmp_path: Path) -> None:
    dev = DevConfig(every=9, questions=2, samples=4, temperature=0.7)
    trainer = train(steps=1, dev=dev)
    assert trainer.calls.count("roll out 2 x 4") == 3
    lines = logged(tmp_path / "adapter")
    assert [line.dev_f1 for line in lines] == [0.25, 0.5]
    assert [line.metrics["dev_f1_se"] for line in lines] == [0.0, 0.0], (
        "of the questions' means, which are equal"
    )


def test_rollouts_that_infrastructure_broke_are_counted_and_not_trained_on(
    train: Train, tmp_path: Path
) -> None:
    ends = {0: StopReason.TOOL_ERROR, 1: StopReason.MODEL_ERROR, 2: StopReason.TURN_BUDGET}
    trainer = train(steps=1, ends=ends)
    assert "update from 4" in trainer.calls
    metrics = logged(tmp_path / "adapter")[1].metrics
    assert metrics["left_out"] == 4
    assert metrics["failures/tool_error"] == metrics["failures/model_error"] == 0.25


def test_a_rollout_that_met_its_deadline_by_its_own_length_is_trained_on(
    train: Train, tmp_path: Path
) -> None:
    trainer = train(steps=1, ends={1: StopReason.DEADLINE})
    assert "update from 8" in trainer.calls
    metrics = logged(tmp_path / "adapter")[1].metrics
    assert (metrics["left_out"], metrics["failures/deadline"]) == (0, 0.25)


def test_a_step_whose_rollouts_all_failed_stops_the_run_with_the_first_error(
    train: Train, task: RlTask
) -> None:
    with pytest.raises(
        EndpointError,
        match=r"every rollout .* ended with model_error: 401 Unauthorized\. .* goes on",
    ):
        train(steps=1, ends=dict.fromkeys(range(4), StopReason.MODEL_ERROR))
    assert len((task.scratch / "train_log.jsonl").read_text().splitlines()) == 1


def test_a_dev_score_whose_rollouts_all_failed_stops_the_run_and_the_step_is_made_again(
    train: Train, task: RlTask
) -> None:
    train(steps=0)
    with pytest.raises(EndpointError) as caught:
        train(steps=1, ends={-1: StopReason.TOOL_ERROR})
    assert str(caught.value) == (
        "2 of the 2 rollouts of a dev score were failed by a server (2 tool_error); the first one "
        "ended with tool_error: 401 Unauthorized. That leaves too few to choose a checkpoint by. "
        "Check the servers and run the command again, which goes on after the last logged step."
    )
    assert len(logged(task.scratch)) == 1, "a server's failure is no dev score"
    assert "update from 8" in train(steps=1).calls


def test_more_steps_than_the_epochs_allow_are_refused(
    task: RlTask, config: RlConfig, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"6 questions, more than rl\.epochs = 1 over the 5 .* lower the steps to 2",
    ):
        refused(task, config.model_copy(update={"epochs": 1.0}), tmp_path)


def test_rewards_are_weighted(train: Train, tmp_path: Path) -> None:
    train(rewards={"exact_match": 3.0, "answer_format": -1.0})
    metrics = logged(tmp_path / "adapter")[1].metrics
    parts = (metrics["reward/exact_match"], metrics["reward/answer_format"], metrics["reward"])
    assert parts == (0.75, -1.0, -0.25)


def test_a_start_without_a_number_of_steps_is_a_config_error(
    task: RlTask, config: RlConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"rl\.steps has no entry for the start 'base'"):
        refused(task, config.model_copy(update={"steps": {"sft": 1}}), tmp_path)


@pytest.mark.parametrize(
    ("protocol", "prompt", "words"),
    [
        ("search_tags", "tiny", "does not ask .* agent.protocol: function_calling"),
        ("function_calling", "search_tags", "asks .* agent.protocol: search_tags"),
    ],
)
def test_a_prompt_of_the_other_protocol_is_refused(
    task: RlTask, config: RlConfig, tmp_path: Path, protocol: str, prompt: str, words: str
) -> None:
    changes = {"protocol": protocol, "prompt": prompt}
    other = replace(task, agent=task.agent.model_copy(update=changes))
    with pytest.raises(ConfigError, match=words):
        refused(other, config, tmp_path)


def test_a_dev_score_leaves_out_what_a_server_failed_and_is_none_where_it_failed_much(
    train: Train, task: RlTask, tmp_path: Path
) -> None:
    dev = DevConfig(every=9, questions=2, samples=10, temperature=0.7)
    failed = {-10: StopReason.MODEL_ERROR}  # the last of ten, which is wrong
    train(steps=1, dev=dev, ends=failed)
    assert [line.dev_f1 for line in logged(tmp_path / "adapter")] == pytest.approx([2 / 9, 5 / 9])

    shutil.rmtree(task.scratch)
    with pytest.raises(
        EndpointError, match="4 of the 20 rollouts of a dev score were failed by a server"
    ):
        train(steps=1, dev=dev, ends={**failed, -9: StopReason.TOOL_ERROR})


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_split_without_questions_is_refused(
    task: RlTask, config: RlConfig, tmp_path: Path, split: str
) -> None:
    with pytest.raises(
        ArtifactError, match=f"the {split} split of rl.dataset 'multihoprag' has no question"
    ):
        refused(replace(task, **{split: []}), config, tmp_path)


def test_whether_the_prompt_opens_the_thought_is_read_from_the_policys_chat_template(
    task: RlTask, config: RlConfig, tmp_path: Path
) -> None:
    policy = policy_text(load_chat_format(task.start), config.think_length)
    assert (policy.opens_thought, policy.think_length) == (False, config.think_length)
    assert policy.count_tokens("<think>") > 0
    tokenizer = AutoTokenizer.from_pretrained(task.start)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "assistant\\n' }}", "assistant\\n<think>\\n' }}"
    )
    tokenizer.save_pretrained(tmp_path / "thinking")
    thinking = load_chat_format(tmp_path / "thinking")
    assert policy_text(thinking, config.think_length).opens_thought
    with pytest.raises(ConfigError, match="history_reasoning"):
        refused(replace(task, start=tmp_path / "thinking"), config, tmp_path)


def refused(task: RlTask, config: RlConfig, folder: Path) -> None:
    """Call the loop, which must refuse before it asks the engine for anything."""
    trainer = TinyTrainer(folder / "checkpoints")
    try:
        train_policy(task, config, trainer, folder / "adapter")
    finally:
        assert not trainer.calls


def test_an_epoch_asks_every_question_once_before_any_twice(task: RlTask) -> None:
    order = [question.id for first in range(0, 10, 2) for question in batch(task, first, 2)]
    assert sorted(order[:5]) == sorted(order[5:]) == sorted(question.id for question in task.train)
    assert order[:5] != order[5:]


def test_the_best_step_is_the_earliest_of_those_with_the_best_dev_f1() -> None:
    scores = [0.2, None, 0.5, 0.5, None]
    lines = [TrainingStep(step=step, dev_f1=f1) for step, f1 in enumerate(scores)]
    assert [best_line(lines[: end + 1]).step for end in range(len(lines))] == [0, 0, 2, 2, 2]
    assert best_line(lines[1:2]).step == 1, "without a score, the first line"


def test_the_best_checkpoint_before_a_damaged_one_is_kept() -> None:
    scores = [0.2, 0.5, None, 0.3, 0.6]
    lines = [TrainingStep(step=step, dev_f1=f1) for step, f1 in enumerate(scores)]
    assert RunLog("rl@sft", lines).kept_steps(2) == {1, 3, 4}
    assert RunLog("rl@sft", lines[:2]).kept_steps(2) == {0, 1}


def test_shuffled_rewards_stay_inside_their_group(train: Train, task: RlTask) -> None:
    easy = [question.id for question in batch(task, 0, 1)]
    in_order = train(easy=easy).rewards
    assert in_order[0] == [[2, 2, 2, 2], [2, 0, 0, 0]]
    shutil.rmtree(task.scratch)
    shuffled = train(easy=easy, shuffle_rewards=True).rewards
    assert [[sorted(group, reverse=True) for group in groups] for groups in shuffled] == in_order
    assert shuffled != in_order


def test_a_reward_of_ones_own_that_does_not_score_0_to_1_is_refused_before_the_engine_starts(
    task: RlTask, config: RlConfig, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def twice(trajectory, question, policy):\n    return 2.0\n")
    weights = {"f1": 1.0, f"{path}:twice": 0.5}
    with pytest.raises(ConfigError, match=r"mine\.py:twice returned 2\.0 for the rollout"):
        refused(task, config.model_copy(update={"rewards": weights}), tmp_path)
    with pytest.raises(UnknownNameError, match="Did you mean 'twice'"):
        RlConfig.model_validate(config.model_dump() | {"rewards": {f"{path}:twise": 1.0}})


def test_params_under_which_a_rollout_can_be_longer_than_what_is_trained_on_are_refused_with_the_arithmetic(
    train: Train, task: RlTask
) -> None:
    limit = task.agent.context_tokens - 24
    with pytest.raises(
        ConfigError, match=rf"rl\.max_sequence_tokens = {limit} .* up to 24 tokens too long"
    ):
        train(max_sequence_tokens=limit)


class BadUpdates(TinyTrainer):
    """Its first updates of step 2 are not finite; ``seeds`` are those of the rollouts of every try."""

    def __init__(self, *arguments: Any, bad: int) -> None:
        super().__init__(*arguments)
        self.bad = bad
        self.seeds: list[int] = []

    async def roll_out(
        self, questions: Sequence[Question], sampling: RolloutSampling
    ) -> list[list[Rollout]]:
        if sampling.trained and self.step == 1:
            self.seeds.append(sampling.seed)
        return await super().roll_out(questions, sampling)

    async def update(
        self, rollouts_QG: Sequence[Sequence[Rollout]], rewards_QG: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        if self.step == 1 and len(self.seeds) <= self.bad:
            raise NotFiniteError("the loss is nan")
        return await super().update(rollouts_QG, rewards_QG)


def test_an_update_that_is_not_finite_is_tried_again_from_the_last_step_with_other_rollouts(
    task: RlTask, config: RlConfig, tmp_path: Path
) -> None:
    trainer = BadUpdates(task.scratch / "checkpoints", None, (), bad=2)
    for _ in range(2):
        with pytest.raises(NotFiniteError):
            train_policy(task, config, trainer, tmp_path / "adapter")
        assert [line.step for line in logged(task.scratch)] == [0, 1]
    train_policy(task, config, trainer, tmp_path / "adapter")
    assert len(set(trainer.seeds)) == 3
    assert [line.step for line in logged(tmp_path / "adapter")] == [0, 1, 2, 3]
    assert json.loads((tmp_path / "adapter" / "adapter").read_text()) == 0.75


def test_an_alarm_is_logged_and_said_once(
    train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    every = {f"q{n}" for n in range(7)}
    with recorded_curve(tmp_path / "curve.jsonl"):
        train(steps=8, easy=every, epochs=9.0)
    lines = logged(tmp_path / "adapter")
    assert [line.metrics.get("alarm/no_signal") for line in lines] == [None] * 5 + [1.0] * 4
    assert caplog.text.count("rl@base, step 5, no_signal: 100% of the groups") == 1
    (alarm,) = json.loads((tmp_path / "adapter" / "manifest.json").read_text())["alarms"]
    assert (alarm["name"], alarm["step"]) == ("no_signal", 5)
    curve = list(read_jsonl(tmp_path / "curve.jsonl", CurveLine))
    assert [line.step for line in curve if line.alarms] == [5]
    assert curve[5].alarms[0].model_dump() == alarm

    caplog.clear()
    train(steps=9, easy=every, epochs=9.0)
    assert "no_signal" not in caplog.text, "a resumed run knows the alarms of its log"
    assert json.loads((tmp_path / "adapter" / "manifest.json").read_text())["alarms"] == [alarm]
