"""The policy of the CPU service: a LoRA that is trained, and a dense model with the same weights that is served.

Serving through LoRA layers would nearly triple the number of small matrix products, so the served model holds
``base + scale * B A`` as dense weights. :meth:`LoraPolicy.publish` brings them up to date after every update; the
``Canary`` of :mod:`deepsearch_rl.training.rl.loop` proves that it did. :meth:`LoraPolicy.update` makes one optimizer
step over packed rollouts with ART's own loss.

Shapes: B rollouts, S tokens (padded on the right), V vocabulary. Log-probabilities are aligned as ART's loss wants
them: position ``t`` of ``logprobs_BS`` is the log-probability of token ``t + 1`` given the tokens up to ``t``; the
last position is meaningless and masked out.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import peft
import torch
from art import dev
from art.loss import loss_fn, shift_tensor
from art.preprocessing.inputs import TrainInputs
from art.preprocessing.pack import PackedTensors
from peft.tuners.lora import Linear
from transformers import AutoModelForCausalLM, PreTrainedModel

from deepsearch_rl.training.rl.config import LoraConfig

OPTIMIZER_FILE = "optimizer.pt"
ROWS_PER_FORWARD = 16
"""Rollouts in one forward pass: enough to fill the matrix products, few enough to keep peak memory low."""
MAX_GRAD_NORM = 1.0


@dataclass(slots=True)
class LoraPolicy:
    """A trained adapter, the dense model that is served, and the optimizer's state."""

    trained: peft.PeftModel
    served: PreTrainedModel
    optimizer: torch.optim.Optimizer

    def publish(self) -> None:
        """Write the trained weights into the served model."""
        with torch.no_grad():
            for name, layer in self.trained.base_model.model.named_modules():
                if isinstance(layer, Linear):
                    base = cast(torch.nn.Linear, layer.get_base_layer())
                    weight = base.weight + layer.get_delta_weight("default")
                    self.served.get_parameter(f"{name}.weight").copy_(weight)

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Return the trained policy's log-probability of every token but the first, by a forward pass of its own."""
        self.trained.eval()
        with torch.no_grad():
            logprobs_BS, _ = token_statistics(self.trained, torch.tensor([token_ids]), torch.tensor([len(token_ids)]))
        return logprobs_BS[0, :-1].tolist()

    def save(self, folder: Path) -> None:
        """Write adapter and optimizer; ``folder`` appears by one rename, so that a kill leaves no half checkpoint."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f"partial-{folder.name}")
        self.trained.save_pretrained(str(partial))
        torch.save(self.optimizer.state_dict(), partial / OPTIMIZER_FILE)
        partial.replace(folder)

    def update(
        self, packed: PackedTensors, rows: torch.Tensor, learning_rate: float, config: dev.TrainConfig
    ) -> dict[str, float]:
        """Make one optimizer step over ``rows`` of the packed tensors; return its metrics by ART's names."""
        self.trained.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        trained_tokens = packed["assistant_mask"][rows].sum().item()
        totals: dict[str, float] = defaultdict(float)
        tensors = {name: tensor for name, tensor in packed.items() if isinstance(tensor, torch.Tensor)}
        lengths = (tensors["group_ids"] != -1).sum(dim=1)
        for batch in rows[lengths[rows].argsort()].split(ROWS_PER_FORWARD):  # rows of similar length, little padding
            inputs = {name: tensor[batch, : int(lengths[batch].max())] for name, tensor in tensors.items()}
            for name, value in _backward(self.trained, inputs, lengths[batch], config, trained_tokens).items():
                totals[name] += value
        norm = torch.nn.utils.clip_grad_norm_(self.trained.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {**totals, "loss/grad_norm": float(norm), "loss/learning_rate": learning_rate}


def load_policy(start: Path, lora: LoraConfig, seed: int, checkpoint: Path | None = None) -> LoraPolicy:
    """Open a merged model with a new adapter, or with the adapter and optimizer of a checkpoint."""
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    if checkpoint is None:
        settings = peft.LoraConfig(
            r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        trained = cast(peft.PeftModel, peft.get_peft_model(base, settings))
    else:
        trained = peft.PeftModel.from_pretrained(base, checkpoint, is_trainable=True)
    parameters = [parameter for parameter in trained.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0)
    if checkpoint is not None:
        optimizer.load_state_dict(torch.load(checkpoint / OPTIMIZER_FILE, weights_only=True))
    served = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).eval()
    policy = LoraPolicy(trained, served, optimizer)
    policy.publish()
    return policy


def token_statistics(
    model: torch.nn.Module, tokens_BS: torch.Tensor, lengths_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probability and entropy (nats, no gradient) of every next token of right-padded rows, each [B, S].

    Padding cannot be attended to.
    """
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
    config: dev.TrainConfig,
    trained_tokens: float,
) -> dict[str, float]:
    """Add one forward batch's share of the gradient; return its share of the step's mean metrics."""
    share_BS = shift_tensor(inputs["assistant_mask"], False).float() / trained_tokens
    logprobs_BS, entropy_BS = token_statistics(model, inputs["tokens"], lengths_B)
    with torch.no_grad(), model.disable_adapter():
        reference_BS = token_statistics(model, inputs["tokens"], lengths_B)[0]
    loss = loss_fn(cast(TrainInputs, inputs), logprobs_BS, reference_BS, None, config, reduction="sum")
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


def _clipped(inputs: dict[str, torch.Tensor], logprobs_BS: torch.Tensor, config: dev.TrainConfig) -> torch.Tensor:
    """Return 1 for tokens whose probability ratio to the sampling policy is clipped, at the loss's own level."""
    sampled_BS = shift_tensor(inputs["logprobs"], float("nan"))
    difference_BS = (logprobs_BS - sampled_BS).nan_to_num(0.0)
    if config.get("importance_sampling_level") == "sequence":  # a row is one rollout: the mean over its sampled tokens
        sampled_B = (~sampled_BS.isnan()).sum(dim=1, keepdim=True).clamp(min=1)
        difference_BS = (difference_BS.sum(dim=1, keepdim=True) / sampled_B).expand_as(difference_BS)
    low = config.get("epsilon", 0.2)
    high = config.get("epsilon_high") or low
    ratio_BS = difference_BS.exp()
    return ((ratio_BS < 1 - low) | (ratio_BS > 1 + high)).float()
