"""What an answer depends on besides the model, and nothing else, is in the digest that names logs and runs."""

import shutil
from pathlib import Path

import pytest

from deepsearch_rl.errors import UnknownNameError
from deepsearch_rl.files import read_json, write_json
from deepsearch_rl.profile import Profile
from deepsearch_rl.trajectories.rollout_setting import RolloutSetting
from tests.worlds import World


@pytest.fixture
def setting(smoke: Profile, world: World, tmp_path: Path) -> RolloutSetting:
    """The smoke profile's setting, with files that a test may change."""
    files = {
        "questions": shutil.copytree(world.questions.parent, tmp_path / "questions"),
        "index": shutil.copytree(world.index, tmp_path / "index"),
    }
    return RolloutSetting.of(smoke, "multihoprag").model_copy(update=files)


def test_the_digest_changes_with_every_input_of_an_answer(setting: RolloutSetting) -> None:
    agent, retrieval = setting.agent, setting.retrieval
    changed = [
        {"seed": setting.seed + 1},
        {"agent": agent.model_copy(update={"max_turns": agent.max_turns + 1})},
        {"retrieval": retrieval.model_copy(update={"top_k": retrieval.top_k + 1})},
    ]
    digests = [setting.digest("train"), setting.digest("train", "dev")]
    digests += [setting.model_copy(update=change).digest("train") for change in changed]
    manifest = setting.index / "manifest.json"
    write_json(manifest, read_json(manifest) | {"chunks_sha256": "0"})
    digests.append(setting.digest("train"))
    with setting.split("train").open("a") as questions:
        questions.write("\n")
    digests.append(setting.digest("train"))
    assert len({*digests}) == len(digests) == 7


def test_the_digest_is_that_of_other_folders_with_the_same_content(setting: RolloutSetting, world: World) -> None:
    changes: dict[str, object] = {
        "questions": world.questions.parent,
        "index": world.index,
        "agent": setting.agent.model_copy(update={"concurrency": 1}),
    }
    assert setting.digest("dev") == setting.model_copy(update=changes).digest("dev")


def test_a_data_set_without_a_corpus_is_refused(smoke: Profile) -> None:
    with pytest.raises(UnknownNameError, match="unknown dataset 'multihop'"):
        RolloutSetting.of(smoke, "multihop")
