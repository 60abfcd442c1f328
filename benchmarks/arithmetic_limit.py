"""What a core multiplies, and how long a query of the servers' encoder takes at least."""

import statistics
from pathlib import Path

import torch

from benchmarks import data
from benchmarks.measure import timed


def arithmetic_limit(encoder: Path, texts: list[str]) -> str:
    """Return a sentence: what a core multiplies, and how long a query of the server's rows takes at least."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds

    torch.set_num_threads(1)
    rows = 1024
    width = data.MINILM["hidden_size"]
    inner = data.MINILM["intermediate_size"]
    inputs = torch.randn(rows, width)
    weights = torch.randn(width, inner)
    with torch.inference_mode():
        fastest_s = min(timed(lambda: inputs @ weights)[0] for _ in range(50))
    flops_per_s = 2 * rows * width * inner / fastest_s

    queries = data.draw_queries(texts, 1, 1000)
    tokens = AutoTokenizer.from_pretrained(encoder)(queries, max_length=32, truncation=True)
    mean_tokens = statistics.fmean(map(len, tokens["input_ids"]))
    layers = data.MINILM["num_hidden_layers"]
    flops = 2 * layers * (4 * width * width + 2 * width * inner) * mean_tokens
    return (
        f"A core multiplies {flops_per_s / 1e9:.0f} GFLOP/s in float32 (the fastest of 50 products of the encoder's "
        f"shape). A query has {mean_tokens:.1f} tokens and takes {flops / 1e6:.0f} MFLOP, so that no float32 encoder "
        f"of this shape takes less than {1000 * flops / flops_per_s:.2f} CPU ms for it."
    )
