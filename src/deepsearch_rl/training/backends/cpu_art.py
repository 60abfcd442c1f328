"""ART on a CPU: everything of ``art.LocalBackend`` but the service that trains and serves the policy.

ART gathers rollouts, tokenises them, computes group advantages, packs tensors, keeps step folders and calls its own
``loss_fn``; :class:`CpuService` stands where ART has Unsloth and vLLM. Departures from that service: all rollouts of a
step make ``minibatches`` updates (one by default) instead of one update per sequence; no weight decay; the served
weights are written in place, in the same process, after every step.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from art import dev, types
from art.local.backend import LocalBackend
from art.local.checkpoints import get_last_checkpoint_dir
from art.local.service import ModelService
from art.loss import loss_fn, shift_tensor
from art.model import TrainableModel
from art.preprocessing.inputs import TrainInputs
from art.preprocessing.pack import DiskPackedTensors, PackedTensors, packed_tensors_from_dir
from art.preprocessing.tokenize import SFTBatch
from art.utils.get_model_step import get_step_from_dir
from art.utils.output_dirs import get_model_dir, get_step_checkpoint_dir
from mp_actors import move_to_child_process

from deepsearch_rl.errors import UnavailableError
from deepsearch_rl.serving.chat_format import load_chat_format
from deepsearch_rl.serving.chat_server import chat_app, end_ids, serve_in_thread
from deepsearch_rl.serving.engine import Engine
from deepsearch_rl.training.backends.policy import LoraSettings, Policy, load_policy
from deepsearch_rl.training.policy_loss import kl_estimate, token_statistics

ROWS_PER_FORWARD = 16
"""Rollouts in one forward pass: enough to fill the matrix products, few enough to keep peak memory low."""
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """What the CPU service needs beyond ART's own arguments."""

    lora: LoraSettings
    slots: int
    context_tokens: int
    minibatches: int
    seed: int


class CpuBackend(LocalBackend):
    """``art.LocalBackend`` whose models are trained and served by :class:`CpuService`.

    Args:
        settings: of the service.
        path: folder for ART's step folders and logs.
        in_process: keep the service in this process; by default it has one of its own, so that generation and the
            rollouts' own work run on two cores.
    """

    def __init__(self, settings: CpuSettings, path: Path, in_process: bool = False) -> None:
        super().__init__(path=str(path), in_process=in_process)
        self._settings = settings

    async def _get_service(self, model: TrainableModel) -> ModelService:
        if model.name not in self._services:
            folder = get_model_dir(model=model, art_path=self._path)
            service = cast(ModelService, CpuService(model.name, model.base_model, self._settings, folder))
            self._services[model.name] = service if self._in_process else move_to_child_process(service)
        return self._services[model.name]


@dataclass
class CpuService:
    """Trains a LoRA policy and serves its merged weights over the OpenAI API."""

    model_name: str
    base_model: str
    config: CpuSettings
    output_dir: str
    _server: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)

    @property
    def step(self) -> int:
        """The newest finished step: the number of its checkpoint folder, 0 before training."""
        return get_step_from_dir(self.output_dir)

    @property
    def served_name(self) -> str:
        """The only model name that the server answers to now."""
        return f"{self.model_name}@{self.step}"

    @cached_property
    def _policy(self) -> Policy:
        newest = get_last_checkpoint_dir(self.output_dir)
        checkpoint = Path(newest) if newest else None
        policy = load_policy(Path(self.base_model), self.config.lora, self.config.seed, checkpoint)
        if checkpoint is None:  # step 0 is a checkpoint like any other: it may turn out to be the best
            policy.save(self._checkpoint(0))
        return policy

    @cached_property
    def _engine(self) -> Engine:
        served = self._policy.served
        engine = Engine(served, end_ids(served), self.config.slots, self.config.context_tokens)
        self._server.callback(engine.close)
        return engine

    def _checkpoint(self, step: int) -> Path:
        folder = Path(get_step_checkpoint_dir(self.output_dir, step))
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder

    async def start_openai_server(self, config: dev.OpenAIServerConfig | None) -> tuple[str, int]:
        """Serve the policy on loopback and return host and port."""
        port = int(cast(dict[str, Any], config or {}).get("server_args", {}).get("port", 0))
        app = chat_app(self._engine, load_chat_format(Path(self.base_model)), lambda: self.served_name)
        endpoint = self._server.enter_context(serve_in_thread(app, self.served_name, port=port))
        return "127.0.0.1", int(endpoint.base_url.rsplit(":", 1)[1].removesuffix("/v1"))

    async def vllm_engine_is_sleeping(self) -> bool:
        """Never: training and serving do not share a device's memory here."""
        return False

    async def canary_logprobs(self, token_ids: list[int]) -> list[float]:
        """The trained policy's log-probabilities of all tokens but the first, computed apart from the server."""
        return self._policy.logprobs(token_ids)

    async def train(
        self,
        disk_packed_tensors: DiskPackedTensors,
        config: types.TrainConfig,
        _config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Make this step's updates, yield their metrics, save the next step's checkpoint and publish its weights."""
        del verbose
        torch.manual_seed(self.config.seed + self.step)
        packed = packed_tensors_from_dir(**disk_packed_tensors)
        order = torch.randperm(disk_packed_tensors["num_sequences"])
        for rows in order.chunk(min(self.config.minibatches, len(order))):
            yield await asyncio.to_thread(_update, self._policy, packed, rows, config.learning_rate, _config)
        self._policy.publish()
        self._engine.forget()
        self._policy.save(self._checkpoint(self.step + 1))

    async def train_sft(
        self,
        batches: list[SFTBatch],  # noqa: ARG002 - ART's signature
        config: types.TrainSFTConfig,  # noqa: ARG002
        verbose: bool = False,  # noqa: ARG002
    ) -> AsyncIterator[dict[str, float]]:
        """Refused: the graph's SFT stage runs ms-swift."""
        raise UnavailableError("the CPU service trains by reinforcement alone; use the `sft` stage.")
        yield {}  # what makes this method the async iterator that ART expects

    async def register_lora_for_step(self, step: int, checkpoint_dir: str) -> None:
        """Nothing to load: a step without an update keeps the live weights; its folder carries the new number."""
        del step, checkpoint_dir

    async def aclose(self) -> None:
        """Stop the server."""
        self.close()

    def close(self) -> None:
        """Stop the server."""
        self._server.close()


def _update(
    policy: Policy, packed: PackedTensors, rows: torch.Tensor, learning_rate: float, config: dev.TrainConfig
) -> dict[str, float]:
    """One optimizer step over ``rows`` of the packed tensors; returns the metrics of the step."""
    policy.trained.train()
    for group in policy.optimizer.param_groups:
        group["lr"] = learning_rate
    trained_tokens = packed["assistant_mask"][rows].sum().item()
    totals: dict[str, float] = {}
    for inputs in _forward_batches(packed, rows):
        for name, value in _backward(policy, inputs, config, trained_tokens).items():
            totals[name] = totals.get(name, 0.0) + value
    norm = torch.nn.utils.clip_grad_norm_(policy.trained.parameters(), MAX_GRAD_NORM)
    policy.optimizer.step()
    policy.optimizer.zero_grad(set_to_none=True)
    return {**totals, "loss/grad_norm": float(norm), "loss/learning_rate": learning_rate}


def _forward_batches(packed: PackedTensors, rows: torch.Tensor) -> Iterator[dict[str, torch.Tensor]]:
    """Rows of similar length together, padding cut to the longest of each batch."""
    tensors = {name: tensor for name, tensor in packed.items() if isinstance(tensor, torch.Tensor)}
    lengths = (tensors["group_ids"] != -1).sum(dim=1)
    for batch in rows[lengths[rows].argsort()].split(ROWS_PER_FORWARD):
        longest = int(lengths[batch].max())
        yield {"lengths": lengths[batch], **{name: tensor[batch, :longest] for name, tensor in tensors.items()}}


def _backward(
    policy: Policy, inputs: dict[str, torch.Tensor], config: dev.TrainConfig, trained_tokens: float
) -> dict[str, float]:
    """Add one forward batch's share of the gradient; returns its share of the step's mean metrics."""
    tokens_BS, lengths_B = inputs["tokens"], inputs.pop("lengths")
    mask_BS = shift_tensor(inputs["assistant_mask"], False).float()
    statistics = token_statistics(policy.trained, tokens_BS, lengths_B)
    with torch.no_grad(), policy.trained.disable_adapter():
        reference_BS = token_statistics(policy.trained, tokens_BS, lengths_B).logprobs_BS
    loss = loss_fn(cast(TrainInputs, inputs), statistics.logprobs_BS, reference_BS, None, config, reduction="sum")
    (loss.policy_loss / trained_tokens).backward()
    share = mask_BS / trained_tokens
    logprobs_BS = statistics.logprobs_BS.detach()
    return {
        "loss/train": loss.policy_loss.item() / trained_tokens,
        "loss/entropy": (statistics.entropy_BS * share).sum().item(),
        "loss/kl_policy_ref": (kl_estimate(logprobs_BS, reference_BS) * share).sum().item(),
        "loss/clip_fraction": (_clipped(inputs, logprobs_BS, config) * share).sum().item(),
    }


def _clipped(inputs: dict[str, torch.Tensor], logprobs_BS: torch.Tensor, config: dev.TrainConfig) -> torch.Tensor:
    """Which tokens' probability ratio to the sampling policy lies outside the clip range, at the loss's own level."""
    sampled_BS = shift_tensor(inputs["logprobs"], float("nan"))
    difference_BS = (logprobs_BS - sampled_BS).nan_to_num(0.0)
    if config.get("importance_sampling_level") == "sequence":  # a row is one rollout: the mean over its sampled tokens
        sampled_B = (~sampled_BS.isnan()).sum(dim=1, keepdim=True).clamp(min=1)
        difference_BS = (difference_BS.sum(dim=1, keepdim=True) / sampled_B).expand_as(difference_BS)
    low = config.get("epsilon", 0.2)
    high = config.get("epsilon_high") or low
    ratio_BS = difference_BS.exp()
    return ((ratio_BS < 1 - low) | (ratio_BS > 1 + high)).float()
