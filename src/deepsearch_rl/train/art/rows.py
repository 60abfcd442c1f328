"""The rollouts of a step as rows of tensors, figures of their tokens, and sealed checkpoints.

Shapes: N rows of a step, B rows of a forward pass, S tokens (padded on the right), P positions that
carry loss, E hidden size, V vocabulary.
"""

import json
from pathlib import Path

import torch
from art.loss import shift_tensor
from art.preprocessing.pack import PackedTensors

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import file_digests, read_json, write_json
from deepsearch_rl.train.rl.agreement import outside_clip
from deepsearch_rl.train.rl.policy_loss import (
    ALGORITHMS,
    importance_weights,
    kl_estimates,
    log_ratios,
    policy_losses,
    token_weights,
)
from deepsearch_rl.train.rl.rl_config import LossConfig


class Rows:
    """The N rollouts of a step as ART packed them, one a row, in an order that depends on their content alone."""

    def __init__(self, packed: PackedTensors) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in packed.items():
            if isinstance(tensor, torch.Tensor):
                tensors[name] = tensor

        lengths = (tensors["group_ids"] != -1).sum(dim=1).tolist()

        # Two rollouts of a question may have written the same tokens, with other advantages
        def content(row: int) -> tuple[int, list[int], float]:
            tokens = tensors["tokens"][row].tolist()
            return lengths[row], tokens, float(tensors["advantages"][row].sum())

        order = torch.tensor(sorted(range(len(lengths)), key=content))
        self.tensors = {name: tensor[order] for name, tensor in tensors.items()}
        self.lengths_N = torch.tensor(lengths)[order]

    def mask(self, rows_B: torch.Tensor) -> torch.Tensor:
        """Return the positions whose next token carries loss, [B, S]."""
        return shift_tensor(self.tensors["assistant_mask"][rows_B], False)

    def weigh(self, chosen: torch.Tensor, loss: LossConfig, max_tokens: int) -> None:
        """Give the tokens of a minibatch their weights in its loss (``token_weights``).

        They are those of the whole step over the minibatch's share of it: of its tokens where the
        aggregation counts tokens (``token``, and ``sequence_art`` as ART does), otherwise of its
        rollouts.
        """
        aggregation = loss.aggregation or ALGORITHMS[loss.algorithm].aggregation
        mask_NS = self.mask(torch.arange(len(self.lengths_N)))
        tokens_N = mask_NS.sum(dim=1)

        counts_tokens = aggregation in ("token", "sequence_art")
        counts_N = tokens_N.float() if counts_tokens else (tokens_N > 0).float()
        share = counts_N[chosen].sum() / counts_N.sum()
        self.tensors["token_weights"] = token_weights(aggregation, mask_NS, max_tokens) / share

    def batches(self, rows: torch.Tensor, max_tokens: int) -> list[torch.Tensor]:
        """Split rows into batches of similar length with at most ``max_tokens``, padding counted, or one row."""
        batches: list[list[int]] = []
        # Rows are in the order of their lengths
        for row in sorted(rows.tolist(), reverse=True):
            # The first of a batch is its longest, to which the others are padded
            longest = int(self.lengths_N[batches[-1][0]]) if batches else 0
            if batches and longest * (len(batches[-1]) + 1) <= max_tokens:
                batches[-1].append(row)
            else:
                batches.append([row])

        return [torch.tensor(batch) for batch in batches]

    def take(self, rows_B: torch.Tensor, device: str) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch, cut to its longest row."""
        longest = int(self.lengths_N[rows_B].max())
        return {name: tensor[rows_B, :longest].to(device) for name, tensor in self.tensors.items()}


def log_softmax_of(
    hidden_PE: torch.Tensor,
    next_P: torch.Tensor,
    head: torch.nn.Linear,
    temperature: float,
    with_entropy: bool,
    has_bonus: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of the tokens ``next_P`` at a temperature and the entropies, in float32.

    The head multiplies in float32 whatever the model's dtype is: a logit of 16 to 32 has steps of
    0.125 in bfloat16.
    """
    # E numbers of a position are divided by the temperature, not V
    hidden_PE = hidden_PE.float() / temperature
    bias = None if head.bias is None else head.bias.float() / temperature
    logits_PV = torch.nn.functional.linear(hidden_PE, head.weight.float(), bias)
    logprobs_PV = torch.log_softmax(logits_PV, dim=-1)
    logprobs_P = logprobs_PV.gather(-1, next_P[:, None])[:, 0]
    if not with_entropy:
        return logprobs_P, torch.zeros_like(logprobs_P)

    with torch.set_grad_enabled(has_bonus and torch.is_grad_enabled()):
        entropy_P = -(logprobs_PV.exp() * logprobs_PV).sum(-1)
    return logprobs_P, entropy_P


def token_losses(
    inputs: dict[str, torch.Tensor],
    logprobs_BS: torch.Tensor,
    entropy_BS: torch.Tensor,
    loss: LossConfig,
) -> torch.Tensor:
    """Return the loss of every token before its weight, [B, S]."""
    algorithm = ALGORITHMS[loss.algorithm]
    old_BS = shift_tensor(inputs["logprobs"], float("nan"))
    losses_BS = policy_losses(
        algorithm.objective,
        log_ratios(
            algorithm.ratio, logprobs_BS, old_BS, shift_tensor(inputs["assistant_mask"], False)
        ),
        logprobs_BS,
        shift_tensor(inputs["advantages"], 0.0),
        loss.epsilon,
        loss.epsilon_high,
        loss.dual_clip,
    )

    if loss.truncated_importance_sampling is not None:
        sampled_BS = shift_tensor(inputs["original_logprobs"], float("nan"))
        losses_BS = losses_BS * importance_weights(
            old_BS, sampled_BS, loss.truncated_importance_sampling
        )

    if loss.kl_loss:
        kl_BS = kl_estimates(loss.kl_estimate, logprobs_BS, inputs["reference_logprobs"])
        losses_BS = losses_BS + loss.kl_loss * kl_BS
    return losses_BS - loss.entropy_bonus * entropy_BS


def clipped(
    inputs: dict[str, torch.Tensor], logprobs_BS: torch.Tensor, loss: LossConfig
) -> torch.Tensor:
    """Return 1 for tokens whose ratio to the old policy is outside the clip range, at the loss's own level."""
    old_BS = shift_tensor(inputs["logprobs"], float("nan"))
    mask_BS = shift_tensor(inputs["assistant_mask"], False)
    return outside_clip(
        log_ratios(ALGORITHMS[loss.algorithm].ratio, logprobs_BS, old_BS, mask_BS), loss
    ).float()


def mean_kl(logprobs_P: torch.Tensor, reference_P: torch.Tensor) -> float:
    """Return Schulman's k3 estimate of KL(policy, reference), never negative (joschu.net/blog/kl-approx.html)."""
    ratio_P = (reference_P - logprobs_P).double()
    return float((ratio_P.exp() - ratio_P - 1).mean())


SEAL = "checkpoint.json"

OPTIMIZER_FILE = "optimizer.pt"

# Files of a checkpoint that a merge does not need
RESUME_ONLY = (OPTIMIZER_FILE, SEAL, "README.md")


def seal(folder: Path, start: str) -> None:
    """Write ``checkpoint.json``; ``start`` is the digest of the start model's weights (``RlTask.weights``)."""
    (folder / SEAL).unlink(missing_ok=True)
    write_json(folder / SEAL, {"start": start, "files": file_digests(folder)})


def is_whole(folder: Path) -> bool:
    """Return whether a folder is sealed and holds exactly the files that it was sealed with."""
    try:
        digests = json.loads((folder / SEAL).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return False

    present = file_digests(folder)
    present.pop(SEAL, None)
    return present == digests


def require_start(folder: Path, start: str) -> None:
    """Check that a whole checkpoint was trained from the weights with the digest ``start``, or raise ArtifactError."""
    if read_json(folder / SEAL)["start"] != start:
        raise ArtifactError(
            f"{folder} was trained from other weights than those that rl starts from. Start from "
            f"the model that it belongs to, or delete {folder.parent} to train again."
        )
