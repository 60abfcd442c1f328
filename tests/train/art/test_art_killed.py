"""RL as the stage trains it, with a policy that searches; its servers and its own process are killed in turn."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.core.files import file_digests, read_jsonl, write_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question
from deepsearch_rl.train.curves import TrainingStep
from deepsearch_rl.train.prepare_model import PrepareModelConfig, prepare_model
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.watchdog import watch
from deepsearch_rl.train.rl.worker import RlRun, train_watched
from tests.train.art.killed_art import Kill, Killed, starts
from tests.worlds import World

MakeRun = Callable[[str], RlRun]
KILLS = (
    (
        Kill(victim="retrieval server", step=1, phase="roll out", rollouts=3),
        r"step 1, phase 'roll out': the retrieval server does not answer at http://127\.0\.0\.1:\d+/healthz; it did",
    ),
    (
        Kill(victim="policy", step=1, phase="update"),
        "step 1, phase 'update': The process that trains and serves the policy has ended",
    ),
    (
        Kill(victim="worker", step=2, phase="save"),
        "step 2, phase 'save': the process was killed by SIGKILL",
    ),
    (
        Kill(victim="policy", step=2, phase="dev", rollouts=3),
        "step 2, phase 'dev': .*policy",
    ),
)
"""Kills, and what the watchdog says of each. The last must not become a dev score of rollouts that had no policy."""


def checkpoint_steps(scratch: Path) -> set[str]:
    return {path.name for path in scratch.glob("**/checkpoints/*")}


@pytest.fixture
def questions(world: World, tmp_path: Path) -> Path:
    """The world's questions, each with the answers of all: so small a model is never right, and scores must differ."""
    folder = tmp_path / "questions"
    for split in ("train", "dev"):
        rows = list(read_jsonl(world.questions.with_name(f"{split}.jsonl"), Question))
        answers = tuple(sorted({answer for row in rows for answer in row.golden_answers}))
        write_jsonl(
            folder / f"{split}.jsonl",
            [row.model_copy(update={"golden_answers": answers}) for row in rows],
        )
    return folder


@pytest.fixture
def make_run(world: World, questions: Path, smoke: Profile, tmp_path: Path) -> MakeRun:
    """Return a run of the smoke profile in a folder of its own; all runs start from one model."""
    start = tmp_path / "base"
    prepare_model(smoke.section("prepare_model", PrepareModelConfig), "tiny", 0, start)
    changes = {
        "steps": {"base": 2},
        "dev": {"every": 1, "questions": 16, "samples": 1, "temperature": 0.7},
        "watchdog": {"start_s": 300, "rollout_s": 120, "update_s": 120, "restarts": 2},
    }

    files = {"questions": questions, "index": world.index, "chunks": world.chunks}
    setting = RolloutSetting.of(smoke, "multihoprag").model_copy(update=files)

    def make(name: str) -> RlRun:
        return RlRun(
            start_name="base",
            start=start,
            weights="",
            setting=setting,
            rl=RlConfig.model_validate({**smoke.section("rl", RlConfig).model_dump(), **changes}),
            scratch=tmp_path / name,
            curve=tmp_path / f"{name}.jsonl",
            output=tmp_path / f"{name}-adapter",
        )

    return make


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_run_whose_processes_are_killed_in_turn_ends_with_the_bytes_of_one_that_was_not(
    make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed, killed = make_run("undisturbed"), make_run("killed")
    train_watched(undisturbed)
    assert not caplog.messages
    lines = list(read_jsonl(undisturbed.output / "train_log.jsonl", TrainingStep))
    assert [line.step for line in lines] == [0, 1, 2]
    assert all(
        line.dev_f1 and line.metrics["tool_calls"] and line.metrics["grad_norm"]
        for line in lines[1:]
    )
    command = [sys.executable, "-m", "tests.train.art.killed_art"]
    settings = Killed(run=killed, kills=tuple(kill for kill, _ in KILLS)).model_dump_json()
    watch("rl@base", command, settings, killed.rl.watchdog, killed.scratch)
    for message, (_, failure) in zip(caplog.messages, KILLS, strict=True):
        assert re.search(failure, message)
    assert starts(killed.scratch) == [0, 1, 1, 2, 2], "no step that has its line is made again"
    assert file_digests(killed.output) == file_digests(undisturbed.output)
    assert checkpoint_steps(killed.scratch) == checkpoint_steps(undisturbed.scratch)
