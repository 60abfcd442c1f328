"""ART on a CPU: everything of ``art.LocalBackend`` but the service that trains and serves the policy.

:class:`CpuService` stands where ART has Unsloth and vLLM. Departures from that service: all rollouts of a step make
``minibatches`` updates (one by default; theirs: one per rollout); no weight decay; the served weights are dense and
written in place, in the same process, after every step (theirs: a LoRA beside the base).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from art import dev, types
from art.local.checkpoints import get_last_checkpoint_dir
from art.model import TrainableModel
from art.preprocessing.pack import DiskPackedTensors, packed_tensors_from_dir
from art.utils.get_model_step import get_step_from_dir
from art.utils.output_dirs import get_step_checkpoint_dir

from deepsearch_rl.processes import LOOPBACK
from deepsearch_rl.serving.chat_format import load_chat_format
from deepsearch_rl.serving.chat_server import chat_app, serve_in_thread
from deepsearch_rl.serving.engine import Engine
from deepsearch_rl.training.backends.art.policy import LoraPolicy, load_policy
from deepsearch_rl.training.backends.art.trainer import ArtTrainer, model_settings
from deepsearch_rl.training.rl.config import RlConfig
from deepsearch_rl.training.rl.trainer import RlTask


def make_cpu_trainer(task: RlTask, config: RlConfig, in_process: bool = False) -> ArtTrainer:
    """Return the trainer; its service has a process of its own unless ``in_process``.

    Two processes let generation and the rollouts' own work run on two cores.
    """

    def make_service(model: TrainableModel[Any, Any], folder: str) -> CpuService:
        return CpuService(model.name, model.base_model, config, folder, task.agent.context_tokens, task.seed)

    hardware = {"device": "cpu", "dtype": "float32"}
    return ArtTrainer(task, config, make_service, model_settings(config), hardware, in_process)


@dataclass
class CpuService:
    """Trains a LoRA policy and serves its merged weights over the OpenAI API: what the loop needs of ART's services."""

    model_name: str
    base_model: str
    config: RlConfig
    output_dir: str
    context_tokens: int
    seed: int
    _server: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)

    @property
    def step(self) -> int:
        """The newest finished step: the number of its checkpoint folder, 0 before training."""
        return get_step_from_dir(self.output_dir)

    @cached_property
    def _policy(self) -> LoraPolicy:
        newest = get_last_checkpoint_dir(self.output_dir)
        checkpoint = Path(newest) if newest else None
        policy = load_policy(Path(self.base_model), self.config.lora, self.seed, checkpoint)
        if checkpoint is None:  # step 0 is a checkpoint like any other: it may turn out to be the best
            policy.save(self._checkpoint(0))
        return policy

    @cached_property
    def _engine(self) -> Engine:
        engine = Engine(self._policy.served, self.config.slots, self.context_tokens)
        self._server.callback(engine.close)
        return engine

    def _checkpoint(self, step: int) -> Path:
        return Path(get_step_checkpoint_dir(self.output_dir, step))

    async def start_openai_server(self, config: dev.OpenAIServerConfig | None) -> tuple[str, int]:  # noqa: ARG002 - ART's
        """Serve the policy on loopback and return host and port; only the name of the newest step is answered."""
        chat_format = load_chat_format(Path(self.base_model))
        app = chat_app(self._engine, chat_format, lambda: f"{self.model_name}@{self.step}")
        return LOOPBACK, self._server.enter_context(serve_in_thread(app))

    async def trainer_logprobs(self, token_ids: list[int]) -> list[float]:
        """Return the trained policy's log-probabilities of all tokens but the first, without the server."""
        return self._policy.logprobs(token_ids)

    async def train(
        self,
        disk_packed_tensors: DiskPackedTensors,
        config: types.TrainConfig,
        _config: dev.TrainConfig,
        verbose: bool = False,  # noqa: ARG002 - ART's signature
    ) -> AsyncIterator[dict[str, float]]:
        """Make this step's updates, yield their metrics, save the next step's checkpoint and publish its weights."""
        torch.manual_seed(self.seed + self.step)
        packed = packed_tensors_from_dir(**disk_packed_tensors)
        order = torch.randperm(disk_packed_tensors["num_sequences"])
        for rows in order.chunk(min(self.config.minibatches, len(order))):
            yield await asyncio.to_thread(self._policy.update, packed, rows, config.learning_rate, _config)
        self._policy.publish()
        self._engine.forget()
        self._policy.save(self._checkpoint(self.step + 1))

    def close(self) -> None:
        """Stop the server."""
        self._server.close()
