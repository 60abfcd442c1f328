"""What log-probabilities and entropy of veRL's padded batches cost on a card, with and without its fused kernel.

    .venvs/verl/bin/python -m benchmarks.verl_logprobs                                # about three minutes of a GPU
    .venvs/verl/bin/python -m benchmarks.verl_logprobs --device cpu --vocabulary 2048 --positions 512

Without flash attention veRL pads its batches. Its plain path (fsdp/transformer_impl.py, 0.9.1) takes the entropy of all
logits at once and the log-probabilities row by row; with `use_fused_kernels` both come from chunks of 512 positions.
`rl.max_batch_tokens` of a veRL profile must leave room for the padded positions of one batch.
"""

import importlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.measure import markdown_table, parse_options

HEADER = ("padded positions", "path", "seconds, forward and backward", "peak GiB")


def plain(
    hidden_TD: torch.Tensor, weights_VD: torch.Tensor, labels_T: torch.Tensor
) -> torch.Tensor:
    """Return the sum of log-probabilities and entropies as veRL's path without fused kernels takes them."""
    functional: Any = importlib.import_module("verl.utils.torch_functional")
    logits_TV = hidden_TD @ weights_VD.t()
    entropy_T = functional.entropy_from_logits(logits_TV)
    log_probabilities_T = functional.logprobs_from_logits(logits_TV, labels_T)
    return (log_probabilities_T + entropy_T).sum()


def fused(
    hidden_TD: torch.Tensor, weights_VD: torch.Tensor, labels_T: torch.Tensor
) -> torch.Tensor:
    """Return the same sum by veRL's fused kernel for PPO, its `torch` backend."""
    functional: Any = importlib.import_module("verl.utils.experimental.torch_functional")
    log_probabilities_T, entropy_T = functional.FusedLinearForPPO()(hidden_TD, weights_VD, labels_T)
    return (log_probabilities_T + entropy_T).sum()


def cost(work: Callable[[], torch.Tensor], device: str) -> tuple[str, str]:
    """Return seconds and peak GiB of a forward and a backward pass; say where memory ends."""
    is_cuda = device == "cuda"
    if is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        started_s = time.perf_counter()
        work().backward()
        if is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started_s
    except torch.OutOfMemoryError:
        return "out of memory", "-"

    peak = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if is_cuda else "-"
    return f"{seconds:.2f}", peak


def main() -> None:
    """Measure both paths at every number of positions, and print the table."""
    options = parse_options(
        __doc__,
        device=("cuda", "where", ("cuda", "cpu")),
        vocabulary=(151_936, "of the model"),
        width=(2048, "of the model's hidden states"),
        positions=([18_432, 30_000, 46_000, 60_000], "of a batch, padding counted"),
    )
    torch.manual_seed(0)
    make = partial(torch.randn, device=options.device, dtype=torch.bfloat16)
    weights_VD = make(options.vocabulary, options.width) / options.width**0.5
    rows: list[tuple[object, ...]] = []
    for positions in options.positions:
        labels_T = torch.randint(options.vocabulary, (positions,), device=options.device)
        for path in (plain, fused):
            hidden_TD = make(positions, options.width).requires_grad_()
            seconds, peak = cost(partial(path, hidden_TD, weights_VD, labels_T), options.device)
            rows.append((f"{positions:,}", path.__name__, seconds, peak))
            sys.stderr.write(f"{positions:,} {path.__name__}: {seconds}\n")

    sys.stdout.write(markdown_table(HEADER, rows))


if __name__ == "__main__":
    main()
