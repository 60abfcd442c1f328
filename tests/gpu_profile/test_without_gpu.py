"""A stage of the gpu profile on a machine without a GPU stops before it reads or writes anything."""

import importlib
from pathlib import Path

import pytest
import torch

from deepsearch_rl.core.errors import UnavailableError
from deepsearch_rl.core.hardware import require_gpu
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.stage import Scratch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
STAGES = {
    "sft": (),
    "merge": (),
    "rl": ("sft",),
    "unsloth_merge": ("sft",),
    "evaluate": ("sft",),
    "ifeval": ("sft",),
}
WITH_SCRATCH = {"sft", "rl", "evaluate"}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_gpu_stage_stops_at_once_and_says_what_is_missing(
    stage: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    generated = load_profile(root / "params.yaml").value("ifeval")
    generated |= {"path": str(root / generated["path"])}
    profile = load_profile(root / "profiles/gpu/params.yaml").with_overrides({"ifeval": generated})
    scratch = Scratch(stage, tmp_path / "work" / "scratch", tmp_path / "work" / "curve.jsonl")
    arguments = [*STAGES[stage], *([scratch] if stage in WITH_SCRATCH else [])]
    main = importlib.import_module(f"stages.{stage}").main
    with pytest.raises(UnavailableError, match=r"a CUDA GPU.*profiles/gpu/README\.md"):
        main(profile, *arguments)
    assert not list(tmp_path.iterdir())


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(UnavailableError) as caught:
        require_gpu("rl", packages=["json", "no_such_package", "neither_this"])
    message = str(caught.value)
    assert "the package 'no_such_package' and the package 'neither_this' and a CUDA GPU" in message
    assert "'json'" not in message
    assert "\n" not in message
