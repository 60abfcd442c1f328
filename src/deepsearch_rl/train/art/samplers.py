"""Servers that rollouts are sampled from: our engine in the training process, or vLLM with the adapter of each step.

A sampler serves one name at a time, ``<model>@<step>``, so that a client that asks for an earlier
policy gets 404.
"""

import contextlib
import http
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import torch
from transformers import AutoModelForCausalLM

from deepsearch_rl.chat.chat_format import load_chat_format
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.processes import GRACE_S, LOOPBACK, Server, free_port, running_server
from deepsearch_rl.serve.adapters import served_rank
from deepsearch_rl.serve.chat_server import chat_app, serve_in_thread
from deepsearch_rl.serve.engine import Engine
from deepsearch_rl.serve.launch import VllmConfig, vllm_serve_command
from deepsearch_rl.train.art.policy import Policy
from deepsearch_rl.train.rl.rl_config import RlConfig


@dataclass
class EngineSampler:
    """Our engine in this process: the weights are dense and written in place."""

    start_folder: Path
    slots: int
    context_tokens: int
    _name: str = ""
    _server: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def start(self) -> tuple[str, int]:
        """Serve from a thread and return host and port of the OpenAI API; nothing is served yet."""
        self._served: Any = AutoModelForCausalLM.from_pretrained(
            self.start_folder, dtype=torch.float32
        ).eval()
        self._engine = Engine(self._served, self.slots, self.context_tokens)
        self._server.callback(self._engine.close)
        app = chat_app(self._engine, load_chat_format(self.start_folder), lambda: self._name)
        return LOOPBACK, self._server.enter_context(serve_in_thread(app))

    def rest(self) -> None:
        """Make room for an update, before the next :meth:`publish`: the engine has nothing to give back."""

    def publish(self, policy: Policy, checkpoint: Path, name: str) -> None:  # noqa: ARG002 - for other samplers
        """Serve a policy as ``name`` and nothing else any more; forget what the earlier one computed."""
        policy.write_into(self._served)
        self._engine.forget()
        self._name = name

    def close(self) -> None:
        """Stop server and engine."""
        self._server.close()


@dataclass
class VllmSampler:
    """``vllm serve`` beside the trainer on one GPU: it loads each step's adapter under a new name.

    vLLM's prefix cache is keyed by the adapter too, so that a new name shares nothing with the one
    before. All methods raise EndpointError if the server ends, refuses or does not answer within
    ``rl.sampler.timeout_s``.
    """

    start_folder: Path
    config: RlConfig
    context_tokens: int
    seed: int
    _name: str = ""
    _asleep: bool = False
    _server: Server | None = None
    _resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def start(self) -> tuple[str, int]:
        """Start vLLM, wait until it answers, and return host and port of the OpenAI API; nothing is served yet."""
        port = free_port()
        command = lora_serve_command(
            self.start_folder, self.config, self.context_tokens, self.seed, port
        )
        url = f"http://{LOOPBACK}:{port}"
        timeout_s = self.config.sampler.timeout_s
        server = running_server("vLLM, which samples for rl,", command, url, "/health", timeout_s)
        self._server = self._resources.enter_context(server)
        return LOOPBACK, port

    def rest(self) -> None:
        """Have vLLM move its weights to main memory and drop its cache, if ``rl.sampler.sleep`` says so."""
        if self.config.sampler.sleep and not self._asleep:
            self._post("/sleep?level=1")
            self._asleep = True

    def publish(self, policy: Policy, checkpoint: Path, name: str) -> None:  # noqa: ARG002 - for other samplers
        """Wake vLLM, load the checkpoint's adapter and unload the one before."""
        if self._asleep:
            # vLLM needs the memory that torch keeps for later
            torch.cuda.empty_cache()
            self._post("/wake_up")
            self._asleep = False

        self._post(
            "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(checkpoint.resolve())}
        )
        if self._name:
            self._post("/v1/unload_lora_adapter", {"lora_name": self._name})
        self._name = name

    def close(self) -> None:
        """Stop vLLM; may be called before :meth:`start`."""
        self._resources.close()

    def _post(self, path: str, body: dict[str, str] | None = None) -> None:
        assert self._server is not None, "the sampler was not started"
        self._server.raise_if_ended()
        timeout_s = self.config.sampler.timeout_s

        try:
            # Without the environment's proxies: the server is on loopback
            response = httpx.post(
                f"{self._server.url}{path}", json=body, timeout=timeout_s, trust_env=False
            )
        except httpx.HTTPError as error:
            # A broken connection comes before the end that broke it
            if not isinstance(error, httpx.TimeoutException):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._server.process.wait(GRACE_S)

            self._server.raise_if_ended()
            raise EndpointError(
                f"vLLM, which samples for rl, did not answer POST {path} within "
                f"rl.sampler.timeout_s = {timeout_s:g} s ({type(error).__name__}). The step is not "
                "kept; run the command again to go on from the last one."
            ) from error

        if response.status_code != http.HTTPStatus.OK:
            raise EndpointError(
                f"vLLM, which samples for rl, refused POST {path} of {body or 'nothing'} with "
                f"status {response.status_code}: {' '.join(response.text[:500].split())} It was "
                f"started for adapters of rank {lora_rank(self.config)} at most on the model "
                f"{self.start_folder}."
            )


Sampler: TypeAlias = EngineSampler | VllmSampler


def lora_rank(config: RlConfig) -> int:
    """Return the rank that vLLM is started for; raise ConfigError without an adapter, and as :func:`served_rank`."""
    if config.lora is None:
        raise ConfigError(
            "rl.lora is null, and vLLM samples from adapters; set rl.lora, or rl.backend.device: cpu."
        )

    return served_rank(config.lora.rank, "the adapter of rl.lora")


def lora_serve_command(
    start: Path, config: RlConfig, context_tokens: int, seed: int, port: int
) -> list[str]:
    """Return the ``vllm serve`` call whose adapters change at runtime (vLLM 0.32, features/lora.md, sleep_mode.md)."""
    sampler = config.sampler
    assert sampler.program is not None, "checked where the trainer is made"
    settings = VllmConfig(
        dtype=config.dtype,
        max_model_len=context_tokens,
        max_num_seqs=sampler.max_num_seqs,
        gpu_memory_utilization=sampler.gpu_memory_utilization,
        enforce_eager=sampler.enforce_eager,
        tool_call_parser=sampler.tool_call_parser,
        reasoning_parser=sampler.reasoning_parser,
        seed=seed,
        start_timeout_s=sampler.timeout_s,
    )
    # Two at once: the next one is loaded before the last one is unloaded.
    lora = ["--enable-lora", "--max-lora-rank", str(lora_rank(config)), "--max-loras", "2"]
    # Log-probabilities are those of rl.temperature, and the head multiplies in float32, both as in
    # the trainer.
    lora += ["--logprobs-mode", "processed_logprobs", "--hf-overrides", '{"head_dtype": "float32"}']
    switches = ["VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"]
    if sampler.sleep:
        lora.append("--enable-sleep-mode")
        switches.append("VLLM_SERVER_DEV_MODE=1")

    _, *arguments = vllm_serve_command(start, settings, port, lora)
    return ["env", *switches, sampler.program, *arguments]
