"""Sentence-transformers with batches of a fixed number of texts, with a token budget, and our own batches by tokens.

    .venv/bin/python -m benchmarks.encoders --docs docs/retrieval.md

All go through random-weight models of all-MiniLM-L6's shape over real passages, as an encoder and as a cross-encoder,
in turns, so that a busy machine slows all alike. The library sorts texts by characters. *32 a batch* is its default;
*by budget* is what this project asks of it (``batch_tokens / max_tokens`` texts); *by tokens* sorts by tokens and fills
every batch up to the budget, which this project did before.
"""

import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers.utils import logging as transformers_logging

from benchmarks.data import DATA, MINILM, gzip_rows, write_random_model
from benchmarks.measure import alternate, parse_options, publish

MAX_TOKENS, BATCH_TOKENS, DEFAULT_ROWS = 512, 4096, 32
Score = Callable[[list[Any], int], NDArray[np.float32]]
"""Vectors or scores of texts or pairs, so many a forward pass."""


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


def _by_tokens(tokenizer: Any, inputs: list[Any], score: Score) -> NDArray[np.float32]:
    """Score in batches by tokens, in the order of the inputs."""
    texts = list(zip(*inputs, strict=True)) if isinstance(inputs[0], tuple) else [inputs]
    tokens = tokenizer(*map(list, texts), truncation=True, max_length=MAX_TOKENS)["input_ids"]
    batches = list(_token_batches([len(row) for row in tokens]))
    results = np.concatenate([score([inputs[row] for row in batch], len(batch)) for batch in batches])
    return results[np.argsort(np.concatenate(batches))]


def measure(tokenizer: Any, inputs: list[Any], score: Score, rounds: int) -> list[float]:
    """Return the median CPU seconds of the three ways, which must agree."""
    ways = {
        "default": lambda: score(inputs, DEFAULT_ROWS),
        "budget": lambda: score(inputs, BATCH_TOKENS // MAX_TOKENS),
        "tokens": lambda: _by_tokens(tokenizer, inputs, score),
    }
    if max(np.abs(way() - ways["default"]()).max() for way in list(ways.values())[1:]) > 1e-3:
        sys.exit("the ways of batching give different results")
    return [statistics.median(seconds) for seconds in alternate(ways, rounds).values()]


def main() -> None:
    """Measure encoder and cross-encoder over every set of passages and print the table."""
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
        corpus = list(itertools.chain(*sets.values()))
        for model in ("encoder", "reranker"):
            write_random_model(Path(folder, model), corpus, MINILM, scores=model == "reranker")
        transformer = Transformer(str(Path(folder, "encoder")), max_seq_length=MAX_TOKENS)
        encoder = SentenceTransformer(modules=[transformer, Pooling(384, "mean")], device="cpu")
        reranker = CrossEncoder(str(Path(folder, "reranker")), device="cpu")
        scores: dict[str, Score] = {
            "encoder": lambda texts, size: encoder.encode(texts, batch_size=size, show_progress_bar=False),
            "reranker": lambda pairs, size: reranker.predict(pairs, batch_size=size, show_progress_bar=False),
        }
        for (model, score), (name, texts) in itertools.product(scores.items(), sets.items()):
            inputs: list[Any] = texts if model == "encoder" else [(texts[0][:60], text) for text in texts]
            default_s, budget_s, tokens_s = measure(encoder.tokenizer, inputs, score, options.rounds)
            ratios = f"{default_s / tokens_s:.2f}", f"{budget_s / tokens_s:.2f}"
            rows.append((model, name, len(texts), *(f"{s:.2f}" for s in (default_s, budget_s, tokens_s)), *ratios))
    seconds = ("32 a batch, CPU s", "by budget, CPU s", "by tokens, CPU s")
    header = ("model", "passages", "texts", *seconds, "32 a batch / by tokens", "by budget / by tokens")
    publish(options, "encoder-batches", header, rows)


if __name__ == "__main__":
    main()
