"""The vLLM sampler against a process that stands in for ``vllm serve``: what is asked of it, and how it may fail."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from deepsearch_rl.core.errors import ConfigError, EndpointError, UnavailableError
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.train.art.policy import Policy
from deepsearch_rl.train.art.service import VllmSampler, lora_rank, require_sampler
from deepsearch_rl.train.rl.rl_config import LoraConfig, RlConfig, SamplerConfig

NO_POLICY = cast(Policy, None)  # vLLM reads the checkpoint's folder
MakeSampler = Callable[..., VllmSampler]


@pytest.fixture
def config(smoke: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RlConfig:
    monkeypatch.setenv("FAKE_VLLM", str(tmp_path))
    program = tmp_path / "vllm"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("fake_vllm.py")} "$@"\n'
    )
    program.chmod(0o755)
    section = smoke.section("rl", RlConfig)
    changes = {
        "program": str(program),
        "sleep": True,
        "gpu_memory_utilization": 0.6,
        "timeout_s": 30.0,
    }
    lora = LoraConfig(rank=12, alpha=8)
    return section.model_copy(
        update={"sampler": section.sampler.model_copy(update=changes), "lora": lora}
    )


@pytest.fixture
def make_sampler(config: RlConfig, tmp_path: Path) -> Iterator[MakeSampler]:
    made: list[VllmSampler] = []

    def make(**changes: Any) -> VllmSampler:
        settings = config.model_copy(update={"sampler": config.sampler.model_copy(update=changes)})
        made.append(VllmSampler(tmp_path / "start", settings, 512, seed=3))
        return made[-1]

    yield make
    for sampler in made:
        sampler.close()


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_every_step_loads_its_adapter_under_a_new_name_and_unloads_the_one_before(
    make_sampler: MakeSampler, tmp_path: Path
) -> None:
    sampler = make_sampler()
    host, port = sampler.start()
    sampler.publish(NO_POLICY, tmp_path / "0000", "policy@0")
    sampler.rest()
    sampler.publish(NO_POLICY, tmp_path / "0001", "policy@1")
    started, *posts = calls(tmp_path)
    assert started["arguments"][:2] == ["serve", str(tmp_path / "start")]
    assert (started["VLLM_ALLOW_RUNTIME_LORA_UPDATING"], started["VLLM_SERVER_DEV_MODE"]) == (
        "True",
        "1",
    )
    flags = " ".join(started["arguments"])
    assert f"--host {host} --port {port}" in flags
    assert "--max-lora-rank 16 --max-loras 2" in flags
    assert "--logprobs-mode processed_logprobs" in flags
    assert "--enable-sleep-mode" in flags
    assert "--gpu-memory-utilization 0.6" in flags
    assert "--no-enable-lora" not in flags
    assert [post["path"] for post in posts] == [
        "/v1/load_lora_adapter",
        "/sleep?level=1",
        "/wake_up",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    ]
    assert posts[3]["body"] == {"lora_name": "policy@1", "lora_path": str(tmp_path / "0001")}
    assert posts[4]["body"] == {"lora_name": "policy@0"}


def test_without_sleep_the_server_keeps_its_share_of_memory(
    make_sampler: MakeSampler, tmp_path: Path
) -> None:
    sampler = make_sampler(sleep=False)
    sampler.start()
    sampler.rest()
    sampler.publish(NO_POLICY, tmp_path / "0000", "policy@0")
    started, *posts = calls(tmp_path)
    assert "--enable-sleep-mode" not in started["arguments"]
    assert started["VLLM_SERVER_DEV_MODE"] is None
    assert [post["path"] for post in posts] == ["/v1/load_lora_adapter"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (
            "refuse",
            r"refused POST /v1/load_lora_adapter.*rank 32 is greater.*started for adapters of rank 16 at most",
        ),
        (
            "die",
            r"vLLM, which samples for rl, ended with exit code 1; its log, .*\.log, ends:\n(.*\n)*CUDA error",
        ),
        ("hang", r"did not answer POST /v1/load_lora_adapter within rl\.sampler\.timeout_s = 2 s"),
    ],
)
def test_a_server_that_fails_at_an_adapter_is_one_error(
    make_sampler: MakeSampler, tmp_path: Path, behaviour: str, message: str
) -> None:
    sampler = make_sampler(timeout_s=2.0) if behaviour == "hang" else make_sampler()
    sampler.start()
    sampler.publish(NO_POLICY, tmp_path / "0000", "policy@0")
    (tmp_path / "behaviour").write_text(behaviour)
    with pytest.raises(EndpointError, match=message):
        sampler.publish(NO_POLICY, tmp_path / "0001", "policy@1")


def test_what_vllm_cannot_hold_is_refused_before_it_starts(config: RlConfig) -> None:
    assert lora_rank(config) == 16
    with pytest.raises(
        ConfigError, match=r"the adapter of rl\.lora is of rank 600, .* up to rank 512"
    ):
        lora_rank(config.model_copy(update={"lora": LoraConfig(rank=600, alpha=1)}))
    with pytest.raises(ConfigError, match=r"rl\.lora is null"):
        require_sampler(config.model_copy(update={"lora": None}))
    require_sampler(config)
    sampler = SamplerConfig.model_validate(
        {**config.sampler.model_dump(), "program": "no-such-vllm"}
    )
    with pytest.raises(
        UnavailableError, match=r"rl\.sampler\.program \(no-such-vllm\) is no program"
    ):
        require_sampler(config.model_copy(update={"sampler": sampler}))
