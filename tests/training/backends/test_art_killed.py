"""The training process of the stage with real servers and a real engine, of which one after the other is killed."""

import sys
from pathlib import Path

import pytest

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.files import read_json, read_jsonl
from deepsearch_rl.profile import Profile
from deepsearch_rl.retrieval.server.config import RetrievalConfig
from deepsearch_rl.training.rl.checkpoints import checkpoints
from deepsearch_rl.training.rl.loop import RlLogLine
from deepsearch_rl.training.rl.trainer import RlConfig
from deepsearch_rl.training.rl.watchdog import WatchdogConfig, watch
from deepsearch_rl.training.rl_worker import RlRun
from deepsearch_rl.trajectories.synthesize import Source
from tests.policies import CONTEXT_TOKENS


@pytest.fixture
def run(policy_folder: Path, world: Source, smoke: Profile, tmp_path: Path) -> RlRun:
    changes = {
        "groups_per_step": 2,
        "steps": {"base": 3},
        "lora": {"rank": 4, "alpha": 8},
        "dev": {"every": 3, "questions": 2, "samples": 1, "temperature": 0.7},
        "max_sequence_tokens": CONTEXT_TOKENS,
        "logprob_chunk": CONTEXT_TOKENS,
        "epochs": 100.0,
        "sampler": {**smoke.section("rl", RlConfig).sampler.model_dump(), "slots": 16},
    }
    return RlRun(
        start_name="base",
        start=policy_folder,
        weights="",
        questions=world.questions.parent,
        index=world.index,
        chunks=world.chunks,
        agent=smoke.section("agent", AgentConfig).model_copy(
            update={"max_tokens": 32, "context_tokens": CONTEXT_TOKENS}
        ),
        retrieval=smoke.section("retrieval", RetrievalConfig),
        rl=RlConfig.model_validate({**smoke.section("rl", RlConfig).model_dump(), **changes}),
        seed=0,
        scratch=tmp_path / "work",
        curve=tmp_path / "curve.jsonl",
        output=tmp_path / "adapter",
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_loss_of_any_process_is_named_and_the_run_continues_with_new_ones(
    run: RlRun, caplog: pytest.LogCaptureFixture
) -> None:
    command = [sys.executable, "-m", "tests.training.backends.killed_art"]
    limits = WatchdogConfig(start_s=300, rollout_s=120, update_s=120, restarts=3)
    watch("rl@base", command, run.model_dump_json(), limits, run.scratch)
    lost = [record.getMessage() for record in caplog.records if "failed at step" in record.getMessage()]
    assert len(lost) == 3
    assert "step 1, phase 'roll out': the retrieval server at http://127.0.0.1:" in lost[0]
    assert "does not answer; it did at " in lost[0]
    assert "step 1, phase 'update': The process that trains and serves the policy has ended" in lost[1]
    assert "step 2, phase 'roll out': the process was killed by SIGKILL" in lost[2]
    lines = list(read_jsonl(run.output / "train_log.jsonl", RlLogLine))
    assert [line.step for line in lines] == [0, 1, 2, 3]
    assert not any(line.metrics.get("failures/tool_error") for line in lines), "no step learned from lost rollouts"
    assert read_json(run.output / "manifest.json")["steps"] == 3
    assert {2, 3} <= checkpoints(run.scratch).keys()
