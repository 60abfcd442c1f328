"""What the RL stage resumes: training under these very settings, the prompt's text among them."""

from pathlib import Path

import pytest

from deepsearch_rl.profile import load_profile
from deepsearch_rl.training import rl_worker
from deepsearch_rl.training.rl_worker import RlRun
from deepsearch_rl.trajectories import rollout_setting
from stages import rl


def test_an_edited_prompt_trains_in_a_scratch_folder_of_its_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[RlRun] = []
    monkeypatch.setattr(rl, "train_watched", runs.append)
    monkeypatch.setattr(rl_worker, "weight_files", lambda _: [])
    for digest in ("sha256_file", "digest_index"):
        monkeypatch.setattr(rollout_setting, digest, lambda _: "0")
    profile = load_profile(root / "profiles/smoke/params.yaml")
    same = {"retrieval.startup_timeout_s": 1, "rl.watchdog.restarts": 0, "rl.keep.last": 3}
    for changed in (profile, profile.with_overrides(same), profile.with_overrides({"rl.learning_rate": 0.5})):
        rl.main(changed, "sft")
    monkeypatch.setattr("deepsearch_rl.agent.config.load_prompt", lambda _: "Another prompt.")
    rl.main(profile, "sft")
    scratch = [run.scratch for run in runs]
    assert scratch[0] == scratch[1]
    assert len({*scratch}) == 3
    assert RlRun.model_validate_json(runs[0].model_dump_json()) == runs[0], "the training process is told all of it"
