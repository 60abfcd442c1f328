"""The preflight of a profile that searches in tags, with veRL on a CPU in place of its GPUs."""

from pathlib import Path

import pytest

from deepsearch_rl.core.profile import Profile, find_profile
from tests.environment.check_environments import interpreter_of
from tools import ROOT
from tools.preflight.phases import Outcome, Preflight
from tools.preflight.project import Project, cut_copy

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not interpreter_of("verl").exists(), reason="make check-trainers builds veRL's environment"
    ),
]


def on_a_cpu(project: Project) -> Project:
    """Return the copy with the smoke profile's model and server, and one process of veRL that trains on a CPU."""
    smoke = find_profile(ROOT, "smoke").values
    verl = {"python": str(interpreter_of("verl")), "gpus_per_node": 1, "rollout": "own"}
    values = {
        **project.profile.values,
        "python": smoke["python"],
        "prepare_model": smoke["prepare_model"],
        "serving": smoke["serving"],
    }
    values["agent"] |= {
        "context_tokens": smoke["agent"]["context_tokens"],
        "max_observation_tokens": None,
        "concurrency": 8,
    }
    values["rl"] |= {
        "backend": {"engine": "verl", "service": "own", "device": "cpu", "verl": verl},
        "dtype": "float32",
        "learning_rate": 1e-4,
        "max_sequence_tokens": 1024,
        "logprob_chunk": 4096,
        "max_batch_tokens": 4096,
        "sampler": smoke["rl"]["sampler"],
    }
    copy = Project(project.root, Profile(project.profile.path, values), project.folder)
    copy.write_params({})
    return copy


def test_search_r1s_phases_pass_and_its_small_model_searches_in_tags(tmp_path: Path) -> None:
    project = on_a_cpu(cut_copy(ROOT, "search_r1", tmp_path / "copy", gpus=1))
    outcomes = {name: Outcome(phase=name, status="passed") for name in ("machine", "index")}
    for name in ("prepare", "rl", "evaluate"):
        outcomes[name] = Preflight(project).run(name, outcomes)
        assert outcomes[name].status == "passed", outcomes[name].message

    (log,) = (project.models / "rl_adapter" / "base").glob("train_log.jsonl")
    assert '"mismatch_mean"' in log.read_text(encoding="utf-8")
    assert outcomes["rl"].figures["mismatch"] < 1e-3, "the sampler's tokens are those of the mask"
