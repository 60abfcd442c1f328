"""A model that answers its training questions itself: the stage's program, a real model server, real searches.

Both servers are in the test's process.
"""

import shutil
from pathlib import Path

import pytest

from deepsearch_rl.chat.prompts import PromptDigests
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_distinct, write_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Trajectory
from stages import synthesize
from tests.model_servers import serve_model_here
from tests.policies import CONTEXT_TOKENS, policy_folder
from tests.search_servers import serve_index_here
from tests.settings import new_scratch
from tests.worlds import World

__all__ = ["policy_folder"]
MODEL = "models/smoke/self_taught"


@pytest.fixture
def profile(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    smoke: Profile,
    world: World,
    policy_folder: Path,
):
    """The smoke profile with an untrained model as its own teacher, in a folder with the stage's inputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deepsearch_rl.agent.synthesize.serve_index", serve_index_here)
    monkeypatch.setattr("deepsearch_rl.agent.synthesize.serve_model", serve_model_here)
    data = world.index.parents[1]
    for name in ("questions", "index", "chunks"):
        (tmp_path / "data" / "smoke").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / "smoke" / name).symlink_to(data / name)
    shutil.copytree(policy_folder, tmp_path / MODEL)
    return smoke.with_overrides(
        {
            "synthesize.teacher": MODEL,
            "synthesize.questions": 2,
            "synthesize.samples": 3,
            "synthesize.temperature": 1.0,
            "agent.context_tokens": CONTEXT_TOKENS,
            "agent.max_tokens": 16,
            "agent.answer_tokens": 4,
            "serving.cpu.context_tokens": CONTEXT_TOKENS,
            "serving.cpu.slots": 8,
        }
    )


@pytest.mark.slow
def test_a_model_answers_each_question_as_often_as_asked_and_differently(
    profile: Profile, tmp_path: Path
) -> None:
    synthesize.main(profile, new_scratch(tmp_path))
    trajectories = list(
        read_distinct(tmp_path / "data/smoke/trajectories/teacher.jsonl", Trajectory)
    )
    assert [trajectory.sample for trajectory in trajectories] == [0, 1, 2] * 2
    assert {trajectory.temperature for trajectory in trajectories} == {1.0}
    assert all(trajectory.completion_tokens for trajectory in trajectories), (
        "a model has written them"
    )
    assert len({trajectory.messages for trajectory in trajectories}) == 6


def test_a_model_that_was_trained_with_another_prompt_does_not_teach(
    profile: Profile, tmp_path: Path
) -> None:
    other = PromptDigests.of("Another prompt.", "[]").with_template("")
    write_json(tmp_path / MODEL / "manifest.json", {"trained_with": other.model_dump()})
    with pytest.raises(ConfigError, match=rf"{MODEL} was trained with another system prompt"):
        synthesize.main(profile, new_scratch(tmp_path))
