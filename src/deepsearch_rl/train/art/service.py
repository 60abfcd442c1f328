"""Our ART service: a :class:`Policy` trains and a sampler serves it, our engine or vLLM.

Only device and sampler tell GPU from CPU. A sampler serves one name at a time, ``<model>@<step>``,
so that a client that asks for an earlier policy gets 404.

Departures from ART's own service: rollouts are padded to their own length and make
``rl.minibatches`` optimizer steps; the old policy of ratio and clip is the trainer's; optimizer and
policy are one checkpoint.
"""

import asyncio
import contextlib
import http
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

import httpx
import torch
from art import dev, types
from art.local.checkpoints import get_last_checkpoint_dir
from art.model import TrainableModel
from art.preprocessing.pack import DiskPackedTensors, packed_tensors_from_dir
from art.utils.get_model_step import get_step_from_dir
from art.utils.output_dirs import get_step_checkpoint_dir
from transformers import AutoModelForCausalLM

from deepsearch_rl.chat.chat_format import load_chat_format
from deepsearch_rl.core.errors import ConfigError, EndpointError, UnavailableError
from deepsearch_rl.core.processes import GRACE_S, LOOPBACK, Server, free_port, running_server
from deepsearch_rl.serve.adapters import served_rank
from deepsearch_rl.serve.chat_server import chat_app, serve_in_thread
from deepsearch_rl.serve.engine import Engine
from deepsearch_rl.serve.launch import VllmConfig, vllm_serve_command
from deepsearch_rl.train.art.art_trainer import ArtTrainer
from deepsearch_rl.train.art.backend import model_settings
from deepsearch_rl.train.art.policy import Policy
from deepsearch_rl.train.art.rows import Rows
from deepsearch_rl.train.rl.rl_config import RlConfig, learning_rate
from deepsearch_rl.train.rl.rl_trainer import RlTask

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


@dataclass
class EngineSampler:
    """Our engine in this process: the weights are dense and written in place."""

    start_folder: Path
    config: RlConfig
    context_tokens: int
    _name: str = ""
    _server: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def start(self) -> tuple[str, int]:
        """Serve from a thread and return host and port of the OpenAI API; nothing is served yet."""
        self._served: Any = AutoModelForCausalLM.from_pretrained(
            self.start_folder, dtype=getattr(torch, self.config.dtype)
        ).eval()
        self._engine = Engine(self._served, self.config.sampler.slots, self.context_tokens)
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


@dataclass
class OwnService:
    """Trains a policy and serves it over the OpenAI API: what the loop needs of ART's services."""

    model_name: str
    output_dir: str
    task: RlTask
    config: RlConfig

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        # The same one for every update: each thread keeps the memory that it has freed to itself
        return ThreadPoolExecutor(1, "service")

    async def _in_thread(
        self, function: Callable[P, ResultT], *arguments: P.args, **named: P.kwargs
    ) -> ResultT:
        call = partial(function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    @property
    def step(self) -> int:
        """The newest finished step: the number of its checkpoint folder, 0 before training."""
        return get_step_from_dir(self.output_dir)

    @cached_property
    def _policy(self) -> Policy:
        newest = get_last_checkpoint_dir(self.output_dir)
        policy = Policy(
            self.task.start, self.config, self.task.seed, Path(newest) if newest else None
        )
        # Step 0 is a checkpoint like any other: it may turn out to be the best
        if newest is None:
            policy.save(self._checkpoint(0), self.task.weights)
        return policy

    @cached_property
    def _sampler(self) -> Sampler:
        start = self.task.start
        context_tokens = self.task.agent.context_tokens
        if self.config.backend.device == "cpu":
            return EngineSampler(start, self.config, context_tokens)
        return VllmSampler(start, self.config, context_tokens, self.task.seed)

    def _checkpoint(self, step: int) -> Path:
        return Path(get_step_checkpoint_dir(self.output_dir, step))

    async def start_openai_server(self, config: dev.OpenAIServerConfig | None) -> tuple[str, int]:  # noqa: ARG002 - ART's
        """Serve the newest policy on loopback and return host and port."""
        # Loaded before vLLM takes its share of the memory
        self._policy  # noqa: B018
        address = await self._in_thread(self._sampler.start)
        await self.serve()
        return address

    async def serve(self) -> None:
        """Serve the newest policy and nothing else any more."""
        name = f"{self.model_name}@{self.step}"
        await asyncio.to_thread(
            self._sampler.publish, self._policy, self._checkpoint(self.step), name
        )

    async def train(
        self,
        disk_packed_tensors: DiskPackedTensors,
        config: types.TrainConfig,  # noqa: ARG002 - ART's signature
        _config: dev.TrainConfig,
        verbose: bool = False,  # noqa: ARG002 - ART's signature
    ) -> AsyncIterator[dict[str, float]]:
        """Make this step's updates, yield their metrics and save the next step's checkpoint."""
        step = self.step + 1
        steps = self.config.steps[self.task.start_name]
        rows = Rows(packed_tensors_from_dir(**disk_packed_tensors))
        parts = minibatches(len(rows.lengths_N), self.config.minibatches, self.task.seed + step)
        # A sampler on the same GPU gives its memory back for the update
        await self._in_thread(self._sampler.rest)

        with memory_named(self.config):
            self._policy.optimizer.param_groups[0]["lr"] = learning_rate(self.config, step, steps)

            if len(parts) == 1 and not self.config.loss.kl_penalty:
                yield await self._in_thread(self._policy.update_once, rows)
            else:
                metrics = await self._in_thread(self._policy.score, rows, parts)
                for chosen in parts:
                    yield {**metrics, **await self._in_thread(self._policy.update, rows, chosen)}

        await self._in_thread(self._policy.save, self._checkpoint(step), self.task.weights)

    async def aclose(self) -> None:
        """Stop server and thread; mp_actors keeps the name ``close`` for the end of the service's process."""
        await self._in_thread(self._sampler.close)
        self._thread.shutdown()


def minibatches(rows: int, count: int | None, seed: int) -> tuple[torch.Tensor, ...]:
    """Return a random partition of ``rows`` row numbers into ``count`` parts, one row each if ``count`` is None.

    There are never more parts than rows, and their sizes differ by one at most.
    """
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    return order.tensor_split(min(count or rows, rows))


@contextlib.contextmanager
def memory_named(config: RlConfig) -> Iterator[None]:
    """Turn CUDA's out-of-memory error into a ConfigError that names the fields to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU has too little memory for an update ({str(error).split('.')[0]}). Lower "
            f"rl.max_batch_tokens (now {config.max_batch_tokens}) or rl.logprob_chunk (now "
            f"{config.logprob_chunk}), set rl.gradient_checkpointing: true or rl.sampler.sleep: "
            "true, or lower rl.sampler.gpu_memory_utilization (now "
            f"{config.sampler.gpu_memory_utilization:g}). Steps that were logged are kept."
        ) from error


def require_sampler(config: RlConfig) -> None:
    """Check that vLLM can be started for this adapter; raise ConfigError or UnavailableError."""
    lora_rank(config)
    program = config.sampler.program

    if program is None or shutil.which(program) is None:
        raise UnavailableError(
            f"rl samples from vLLM, and rl.sampler.program ({program}) is no program. Run `make "
            "gpu-environments`, or set it to the command vllm of an environment that has vLLM."
        )


def make_own_trainer(task: RlTask, config: RlConfig, in_process: bool = False) -> ArtTrainer:
    """Return the trainer; with a process of its own, the service generates on another core than the rollouts' work."""
    if config.backend.device == "cuda":
        require_sampler(config)

    def make_service(model: TrainableModel[Any, Any], folder: str) -> OwnService:
        # Its process asks no question
        return OwnService(model.name, folder, replace(task, train=(), dev=()), config)

    return ArtTrainer(task, config, make_service, model_settings(config), in_process)
