"""The rollouts of a step as rows of tensors, cut into minibatches and forward batches.

Shapes: N rows of a step, B rows of a forward pass, S tokens (padded on the right).
"""

import torch
from art.loss import shift_tensor
from art.preprocessing.pack import PackedTensors

from deepsearch_rl.train.rl.policy_loss import ALGORITHMS, token_weights
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
