"""Our ART service: a :class:`Policy` trains, a :class:`Sampler` serves it. Only device and sampler tell GPU from CPU.

Departures from ART's own service: rollouts are padded to their own length and make
``rl.minibatches`` optimizer steps; the old policy of ratio and clip is the trainer's; optimizer and
policy are one checkpoint.
"""

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
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

from deepsearch_rl.core.errors import ConfigError, UnavailableError
from deepsearch_rl.train.art.art_trainer import ArtTrainer
from deepsearch_rl.train.art.policy import Policy
from deepsearch_rl.train.art.samplers import (
    EngineSampler,
    Sampler,
    VllmSampler,
    lora_rank,
)
from deepsearch_rl.train.art.service_backend import model_settings
from deepsearch_rl.train.art.step_rows import Rows
from deepsearch_rl.train.rl.rl_config import RlConfig, learning_rate
from deepsearch_rl.train.rl.rl_trainer import RlTask


@dataclass
class OwnService:
    """Trains a policy and serves it over the OpenAI API: what the loop needs of ART's services."""

    model_name: str
    output_dir: str
    task: RlTask
    config: RlConfig
    _has_updated: bool = False

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
            return EngineSampler(start, self.config.sampler.slots, context_tokens)
        return VllmSampler(start, self.config, context_tokens, self.task.seed)

    def _checkpoint(self, step: int) -> Path:
        return Path(get_step_checkpoint_dir(self.output_dir, step))

    async def start_openai_server(self, config: dev.OpenAIServerConfig | None) -> tuple[str, int]:  # noqa: ARG002 - ART's
        """Serve the newest policy on loopback and return host and port."""
        # Loaded before vLLM takes its share of the memory
        self._policy  # noqa: B018
        address = await asyncio.to_thread(self._sampler.start)
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
        """Make this step's updates, yield their metrics and save the next step's checkpoint.

        With ``rl.rollouts_ahead``, the rollouts of every update but the first were made ahead of
        the one before.
        """
        step = self.step + 1
        steps = self.config.steps[self.task.start_name]
        rows = Rows(packed_tensors_from_dir(**disk_packed_tensors))
        parts = minibatches(len(rows.lengths_N), self.config.minibatches, self.task.seed + step)
        # A sampler on the same GPU gives its memory back for the update
        await asyncio.to_thread(self._sampler.rest)

        with memory_named(self.config):
            is_ahead = self.config.rollouts_ahead and self._has_updated
            metrics = await asyncio.to_thread(self._policy.score, rows, parts, is_ahead)
            self._policy.optimizer.param_groups[0]["lr"] = learning_rate(self.config, step, steps)

            for epoch in range(self.config.update_epochs):
                # The parts stay what they were scored as; each later epoch takes them in an order
                # of its own.
                order = (
                    random.Random(f"{self.task.seed}/{step}/{epoch}").sample(parts, len(parts))
                    if epoch
                    else parts
                )
                for chosen in order:
                    yield {**metrics, **await asyncio.to_thread(self._policy.update, rows, chosen)}

        await asyncio.to_thread(self._policy.save, self._checkpoint(step), self.task.weights)
        self._has_updated = True

    async def aclose(self) -> None:
        """Stop the server; mp_actors keeps the name ``close`` for the end of the service's process."""
        await asyncio.to_thread(self._sampler.close)


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
