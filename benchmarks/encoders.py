"""Sentence-transformers with batches of a fixed number of texts, with a token budget, and our own batches by tokens.

    .venv/bin/python -m benchmarks.encoders --docs docs/retrieval.md

All go through a model of all-MiniLM-L6's shape with random weights over real passages, in turns, so that a busy machine
slows all alike. The library sorts texts by characters. *32 a batch* is its default; *by budget* is what this project
asks of it (``batch_tokens / max_tokens`` texts); *by tokens* sorts by tokens and fills every batch up to the budget,
which this project did before.
"""

import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers.utils import logging as transformers_logging

from benchmarks.data import DATA, MINILM, gzip_rows, write_random_model
from benchmarks.measure import alternate, parse_options, publish

MAX_TOKENS, BATCH_TOKENS, DEFAULT_ROWS = 512, 4096, 32


def _read_texts(path: Path, count: int) -> list[str]:
    """Return the first passages of a gzip'd JSON Lines file: ``contents``, or ``title`` and ``text``."""
    rows = itertools.islice(gzip_rows(path), count)
    return [row.get("contents") or f"{row['title']}\n{row['text']}" for row in rows]


def _token_batches(lengths_N: Sequence[int]) -> Iterator[list[int]]:
    """Yield positions in batches of at most the budget, padding counted, longest first."""
    batch: list[int] = []
    for position in sorted(range(len(lengths_N)), key=lambda position: -lengths_N[position]):
        if batch and (len(batch) + 1) * lengths_N[batch[0]] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(position)
    yield batch


def measure(encoder: SentenceTransformer, texts: list[str], rounds: int) -> list[float]:
    """Return the median CPU seconds of the three ways, which must agree."""

    def encode(texts: list[str], rows: int) -> NDArray[np.float32]:
        return encoder.encode(texts, batch_size=rows, show_progress_bar=False)

    def by_tokens() -> NDArray[np.float32]:
        tokens = encoder.tokenizer(texts, truncation=True, max_length=MAX_TOKENS)["input_ids"]
        batches = list(_token_batches([len(row) for row in tokens]))
        vectors_ND = np.concatenate([encode([texts[row] for row in batch], len(batch)) for batch in batches])
        return vectors_ND[np.argsort(np.concatenate(batches))]

    ways = {
        "default": lambda: encode(texts, DEFAULT_ROWS),
        "budget": lambda: encode(texts, BATCH_TOKENS // MAX_TOKENS),
        "tokens": by_tokens,
    }
    if max(np.abs(way() - ways["default"]()).max() for way in (ways["budget"], by_tokens)) > 1e-3:
        sys.exit("the ways of batching give different results")
    return [statistics.median(seconds) for seconds in alternate(ways, rounds).values()]


def main() -> None:
    """Measure every set of passages and print the table."""
    options = parse_options(
        __doc__, data=(DATA, "folder of wiki18/ and musique/"), texts=(256, "passages of each set"), rounds=3
    )
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    files = ("wiki18/sample1000", "musique/corpus")
    sets = {name: _read_texts(options.data / f"{name}.jsonl.gz", options.texts) for name in files}
    mixed = [text for pair in zip(*sets.values(), strict=True) for text in pair][: options.texts]
    for row in range(len(mixed)):
        mixed[row] = mixed[row] * 4 if row % 7 == 0 else mixed[row][:60] if row % 3 == 0 else mixed[row]
    sets["both, lengths mixed"] = mixed
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(Path(folder), itertools.chain(*sets.values()), MINILM)
        transformer = Transformer(folder, max_seq_length=MAX_TOKENS)
        encoder = SentenceTransformer(modules=[transformer, Pooling(384, "mean")], device="cpu")
        for name, texts in sets.items():
            default_s, budget_s, tokens_s = measure(encoder, texts, options.rounds)
            ratios = f"{default_s / tokens_s:.2f}", f"{budget_s / tokens_s:.2f}"
            rows.append(("encoder", name, len(texts), *(f"{s:.2f}" for s in (default_s, budget_s, tokens_s)), *ratios))
    seconds = ("32 a batch, CPU s", "by budget, CPU s", "by tokens, CPU s")
    header = ("model", "passages", "texts", *seconds, "32 a batch / by tokens", "by budget / by tokens")
    publish(options, "encoder-batches", header, rows)


if __name__ == "__main__":
    main()
