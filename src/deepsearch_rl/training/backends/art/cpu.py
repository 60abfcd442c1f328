"""ART on a CPU: everything of ``art.LocalBackend`` but the service that trains and serves the policy.

:class:`CpuService` stands where ART has Unsloth and vLLM. Departures from that service: all rollouts of a step make
``minibatches`` updates (one by default; theirs: one per rollout); no weight decay; the served weights are dense,
``base + scale * B A``, and written in place, in the same process, after every step (theirs: a LoRA beside the base,
which would nearly triple the number of small matrix products). The ``Canary`` of :mod:`deepsearch_rl.training.rl.loop`
proves that they were.

Shapes: B rollouts, S tokens (padded on the right), V vocabulary. Log-probabilities are aligned as ART's loss wants
them: position ``t`` of ``logprobs_BS`` is the log-probability of token ``t + 1`` given the tokens up to ``t``; the
last position is meaningless and masked out.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import peft
import torch
from art import dev, types
from art.local.checkpoints import get_last_checkpoint_dir
from art.loss import loss_fn, shift_tensor
from art.model import TrainableModel
from art.preprocessing.inputs import TrainInputs
from art.preprocessing.pack import DiskPackedTensors, PackedTensors, packed_tensors_from_dir
from art.utils.get_model_step import get_step_from_dir
from art.utils.output_dirs import get_step_checkpoint_dir
from peft.tuners.lora import Linear
from transformers import AutoModelForCausalLM, PreTrainedModel

from deepsearch_rl.processes import LOOPBACK
from deepsearch_rl.serving.chat_format import load_chat_format
from deepsearch_rl.serving.chat_server import chat_app, serve_in_thread
from deepsearch_rl.serving.engine import Engine
from deepsearch_rl.training.backends.art.trainer import ArtTrainer, model_settings
from deepsearch_rl.training.rl.trainer import LoraConfig, LossConfig, RlConfig, RlTask

OPTIMIZER_FILE = "optimizer.pt"
ROWS_PER_FORWARD = 16
"""Rollouts in one forward pass: enough to fill the matrix products, few enough to keep peak memory low."""
MAX_GRAD_NORM = 1.0


class LoraPolicy:
    """An adapter in training (a new one, or a checkpoint's with its optimizer), and the dense model served for it."""

    def __init__(self, start: Path, lora: LoraConfig, seed: int, checkpoint: Path | None) -> None:
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
        if checkpoint is None:
            settings = peft.LoraConfig(
                r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
            )
            self._trained = cast(peft.PeftModel, peft.get_peft_model(base, settings))
        else:
            self._trained = peft.PeftModel.from_pretrained(base, checkpoint, is_trainable=True)
        parameters = [parameter for parameter in self._trained.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0)
        if checkpoint is not None:
            self._optimizer.load_state_dict(torch.load(checkpoint / OPTIMIZER_FILE, weights_only=True))
        self.served: PreTrainedModel = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).eval()
        self.publish()

    def publish(self) -> None:
        """Write the trained weights into the served model."""
        with torch.no_grad():
            for name, layer in self._trained.base_model.model.named_modules():
                if isinstance(layer, Linear):
                    base = cast(torch.nn.Linear, layer.get_base_layer())
                    weight = base.weight + layer.get_delta_weight("default")
                    self.served.get_parameter(f"{name}.weight").copy_(weight)

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Return the trained policy's log-probability of every token but the first, by a forward pass of its own."""
        self._trained.eval()
        with torch.no_grad():
            logprobs_BS, _ = token_statistics(self._trained, torch.tensor([token_ids]), torch.tensor([len(token_ids)]))
        return logprobs_BS[0, :-1].tolist()

    def save(self, folder: Path) -> None:
        """Write adapter and optimizer; ``folder`` appears by one rename, so that a kill leaves no half checkpoint."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f"partial-{folder.name}")
        self._trained.save_pretrained(str(partial))
        torch.save(self._optimizer.state_dict(), partial / OPTIMIZER_FILE)
        partial.replace(folder)

    def update(
        self, packed: PackedTensors, rows: torch.Tensor, config: RlConfig, art_config: dev.TrainConfig
    ) -> dict[str, float]:
        """Make one optimizer step over ``rows`` of the packed tensors; return its metrics by ART's names."""
        self._trained.train()
        self._optimizer.param_groups[0]["lr"] = config.learning_rate
        trained_tokens = packed["assistant_mask"][rows].sum().item()
        totals: dict[str, float] = defaultdict(float)
        tensors = {name: tensor for name, tensor in packed.items() if isinstance(tensor, torch.Tensor)}
        lengths = (tensors["group_ids"] != -1).sum(dim=1)
        for batch in rows[lengths[rows].argsort()].split(ROWS_PER_FORWARD):  # of similar length: little padding
            inputs = {name: tensor[batch, : int(lengths[batch].max())] for name, tensor in tensors.items()}
            metrics = _backward(self._trained, inputs, lengths[batch], config.loss, art_config, trained_tokens)
            for name, value in metrics.items():
                totals[name] += value
        norm = torch.nn.utils.clip_grad_norm_(self._trained.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return {**totals, "loss/grad_norm": float(norm), "loss/learning_rate": config.learning_rate}


def token_statistics(
    model: torch.nn.Module, tokens_BS: torch.Tensor, lengths_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probability and entropy (nats, no gradient) of every next token of right-padded rows, each [B, S]."""
    positions_S = torch.arange(tokens_BS.shape[1])
    attention_BS = (positions_S[None, :] < lengths_B[:, None]).long()
    logits_BSV = model(input_ids=tokens_BS, attention_mask=attention_BS, use_cache=False).logits.float()
    all_BSV = torch.log_softmax(logits_BSV, dim=-1)
    next_BS = shift_tensor(tokens_BS, 0)
    logprobs_BS = all_BSV.gather(-1, next_BS[..., None]).squeeze(-1)
    with torch.no_grad():
        entropy_BS = -(all_BSV.exp() * all_BSV).sum(-1)
    return logprobs_BS, entropy_BS


def _backward(
    model: peft.PeftModel,
    inputs: dict[str, torch.Tensor],
    lengths_B: torch.Tensor,
    config: LossConfig,
    art_config: dev.TrainConfig,
    trained_tokens: float,
) -> dict[str, float]:
    """Add one forward batch's share of the gradient; return its share of the step's mean metrics."""
    share_BS = shift_tensor(inputs["assistant_mask"], False).float() / trained_tokens
    logprobs_BS, entropy_BS = token_statistics(model, inputs["tokens"], lengths_B)
    with torch.no_grad(), model.disable_adapter():
        reference_BS = token_statistics(model, inputs["tokens"], lengths_B)[0]
    loss = loss_fn(cast(TrainInputs, inputs), logprobs_BS, reference_BS, None, art_config, reduction="sum")
    (loss.policy_loss / trained_tokens).backward()
    logprobs_BS = logprobs_BS.detach()
    # Schulman's k3 estimate of KL(policy, reference) per token, never negative (joschu.net/blog/kl-approx.html)
    ratio_BS = reference_BS - logprobs_BS
    kl_BS = ratio_BS.exp() - ratio_BS - 1
    return {
        "loss/train": loss.policy_loss.item() / trained_tokens,
        "loss/entropy": (entropy_BS * share_BS).sum().item(),
        "loss/kl_policy_ref": (kl_BS * share_BS).sum().item(),
        "loss/clip_fraction": (_clipped(inputs, logprobs_BS, config) * share_BS).sum().item(),
    }


def _clipped(inputs: dict[str, torch.Tensor], logprobs_BS: torch.Tensor, config: LossConfig) -> torch.Tensor:
    """Return 1 for tokens whose probability ratio to the sampling policy is clipped, at the loss's own level."""
    sampled_BS = shift_tensor(inputs["logprobs"], float("nan"))
    difference_BS = (logprobs_BS - sampled_BS).nan_to_num(0.0)
    if config.algorithm == "gspo":  # a row is one rollout: the mean over its sampled tokens
        sampled_B = (~sampled_BS.isnan()).sum(dim=1, keepdim=True).clamp(min=1)
        difference_BS = (difference_BS.sum(dim=1, keepdim=True) / sampled_B).expand_as(difference_BS)
    ratio_BS = difference_BS.exp()
    return ((ratio_BS < 1 - config.epsilon) | (ratio_BS > 1 + config.epsilon_high)).float()


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
        policy = LoraPolicy(Path(self.base_model), self.config.lora, self.seed, checkpoint)
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
        config: types.TrainConfig,  # noqa: ARG002 - ART's signature
        _config: dev.TrainConfig,
        verbose: bool = False,  # noqa: ARG002 - ART's signature
    ) -> AsyncIterator[dict[str, float]]:
        """Make this step's updates, yield their metrics, save the next step's checkpoint and publish its weights."""
        torch.manual_seed(self.seed + self.step)
        packed = packed_tensors_from_dir(**disk_packed_tensors)
        order = torch.randperm(disk_packed_tensors["num_sequences"])
        for rows in order.chunk(min(self.config.minibatches, len(order))):
            yield await asyncio.to_thread(self._policy.update, packed, rows, self.config, _config)
        self._policy.publish()
        self._engine.forget()
        self._policy.save(self._checkpoint(self.step + 1))

    def close(self) -> None:
        """Stop the server."""
        self._server.close()


def make_cpu_trainer(task: RlTask, config: RlConfig, in_process: bool = False) -> ArtTrainer:
    """Return the trainer; with a process of its own, the service generates on another core than the rollouts' work."""

    def make_service(model: TrainableModel[Any, Any], folder: str) -> CpuService:
        return CpuService(model.name, model.base_model, config, folder, task.agent.context_tokens, task.seed)

    hardware = {"device": "cpu", "dtype": "float32"}
    return ArtTrainer(task, config, make_service, model_settings(config), hardware, in_process)
