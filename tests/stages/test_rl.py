"""What the RL stage resumes: training under these very settings, the prompt's text among them."""

import contextlib
from pathlib import Path

import pytest

from deepsearch_rl.profile import load_profile
from deepsearch_rl.training.rl.trainer import RlTask
from stages import rl


def test_an_edited_prompt_trains_in_a_scratch_folder_of_its_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch: list[Path] = []

    def train_policy(task: RlTask, *_: object) -> None:
        scratch.append(task.scratch)

    monkeypatch.setattr(rl, "train_policy", train_policy)
    monkeypatch.setattr(rl, "weight_files", lambda _: [])
    monkeypatch.setattr(rl, "sha256_file", lambda _: "0")
    monkeypatch.setattr(rl, "read_jsonl", lambda *_: [])
    monkeypatch.setattr(rl, "serve_index", lambda *_: contextlib.nullcontext("http://127.0.0.1:9"))
    profile = load_profile(root / "profiles/smoke/params.yaml")
    rl.main(profile, "sft")
    rl.main(profile.with_overrides({"retrieval.startup_timeout_s": 1}), "sft")
    monkeypatch.setattr("deepsearch_rl.agent.config.load_prompt", lambda _: "Another prompt.")
    rl.main(profile, "sft")
    assert scratch[0] == scratch[1] != scratch[2]
