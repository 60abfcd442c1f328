"""The encoder on a GPU, as ratios of two things in one run; benchmarks/ratios.py has those on a CPU.

    .venv/bin/python -m benchmarks.gpu_ratios --docs docs/measurements.md        # some two minutes

The encoder has random weights of e5-base's shape in float16.

    encoding   beside sentence-transformers on the same GPU, with its own batches of 32 texts: passages of
               wiki-18, and 512, 64, 8 queries and one
    recorded   queries with their passes recorded as CUDA graphs beside the same passes started kernel by kernel
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks import data
from benchmarks.measure import parse_options, publish
from benchmarks.ratio import HEADER, Ratio, compare, table_rows, wall
from benchmarks.server_ratios import DEFAULTS
from deepsearch_rl.search.encoders import cuda_graphs
from deepsearch_rl.search.encoders.sentence_transformers import SentenceTransformersConfig
from deepsearch_rl.search.encoders.encoder import normalise_rows
from deepsearch_rl.search.encoders.sentence_transformers import SentenceTransformersEncoder

E5_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
ENCODED_PASSAGES = 2048
TOKENIZER_PASSAGES = 10_000
QUERIES = (512, 64, 8, 1)

# A query's pass takes milliseconds, of which one says little
PASSES = 20


def repeated(encode: Callable[[list[str]], object], texts: list[str], passes: int) -> None:
    """Encode the same texts some times."""
    for _ in range(passes):
        encode(texts)


def encoding(folder: Path, texts: list[str], rounds: int) -> Iterator[tuple[str, Ratio]]:
    """Compare the encoder with sentence-transformers, and with itself without CUDA graphs."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415

    transformer = Transformer(str(folder), model_kwargs={"dtype": torch.float16})
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    theirs = SentenceTransformer(modules=[transformer, pooling], device="cuda")
    config = {**DEFAULTS, "model": str(folder), "device": "cuda", "dtype": "float16"}
    ours = SentenceTransformersEncoder(SentenceTransformersConfig.model_validate(config))

    def encode_here(batch: list[str]) -> object:
        return ours.encode(batch, "query")

    def encode_plainly(batch: list[str]) -> object:
        with patch.object(cuda_graphs, "GRAPH_TOKENS", 0):
            return ours.encode(batch, "query")

    def encode_there(batch: list[str]) -> object:
        return normalise_rows(theirs.encode(batch, show_progress_bar=False))

    passages = texts[:ENCODED_PASSAGES]
    works = partial(encode_here, passages), partial(encode_there, passages)
    yield f"encoding, {len(passages)} passages", compare(*works, rounds, wall)

    queries = data.draw_queries(texts, 1, max(QUERIES))
    for count in QUERIES:
        name = f"{count} queries" if count > 1 else "one query"
        here, there, plainly = (
            partial(repeated, encode, queries[:count], PASSES)
            for encode in (encode_here, encode_there, encode_plainly)
        )
        yield f"encoding, {name}, {PASSES} times", compare(here, there, rounds, wall)
        yield f"recorded, {name}, {PASSES} times", compare(here, plainly, rounds, wall)


def main() -> None:
    """Measure and publish."""
    options = parse_options(
        __doc__, rounds=(5, "of every comparison"), work=(data.WORK, "the encoder's folder")
    )
    texts = data.wiki18_passages(least=TOKENIZER_PASSAGES)
    encoder = options.work / "e5-base"
    if not encoder.exists():
        data.write_random_model(encoder, texts[:TOKENIZER_PASSAGES], E5_BASE)

    measured: dict[str, Ratio] = {}
    for name, ratio in encoding(encoder, texts, options.rounds):
        measured[name] = ratio
        sys.stderr.write(f"{name}: {ratio.ratio:.2f}\n")

    note = (
        f"Medians of {options.rounds} rounds on one {torch.cuda.get_device_name()} and "
        f"{len(os.sched_getaffinity(0))} cores, torch {torch.__version__}."
    )
    publish(options, "gpu-ratios", HEADER, table_rows(measured), before=note)


if __name__ == "__main__":
    main()
