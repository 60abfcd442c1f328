"""How many passages a second an encoder's tokenizer reads, by threads: can a GPU be kept busy?

    .venv/bin/python -m benchmarks.tokenizing --docs docs/measurements.md    # about a minute
    .venvs/index/bin/python -m benchmarks.tokenizing --device cuda           # and what a GPU takes with e5's shape

`index` tokenizes the next passages while the GPU embeds the last ones (`one_ahead`), so that it takes as long as the
slower of the two. On a CPU nothing is embedded here: what is timed is a build's own tokens and tensors. Passages are
wiki-18's, as `passage: ` plus title and 100 words; the tokenizer has 30,522 word pieces.
"""

import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.measure import fill_section, in_turn, markdown_table, parse_options
from benchmarks.ratio import wall
from deepsearch_rl.search.encoders.encoder import Vectors
from deepsearch_rl.search.encoders.sentence_transformers import (
    SentenceTransformersConfig,
    SentenceTransformersEncoder,
)

SECTION = "tokenizing"
# The shape of e5-base-v2
E5 = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
HEADER = ("threads of the tokenizer", "passages/s", "seconds a passage")


class TokensAlone(SentenceTransformersEncoder):
    """An encoder that tokenizes, and embeds nothing."""

    def _embed_tokens(self, features: dict[str, Any]) -> Vectors:
        return np.zeros((len(features["attention_mask"]), self.dimension), dtype=np.float32)


def passages_per_s(folder: Path, texts: list[str], device: str) -> float:
    """Return passages/s of the folder's encoder, or on a CPU of its tokenizer, in this process."""
    config = data.RANDOM_ENCODER | {
        "model": str(folder),
        "passage_prefix": "passage: ",
        "batch_tokens": 65_536,
        "device": device,
        "dtype": "float16" if device == "cuda" else "float32",
    }
    kind = SentenceTransformersEncoder if device == "cuda" else TokensAlone
    encoder = kind(SentenceTransformersConfig.model_validate(config))
    encoder.encode(texts[:2048], "passage")
    return len(texts) / wall(lambda: encoder.encode(texts, "passage"))


def in_process(folder: Path, passages: int, device: str, threads: int) -> float:
    """Return passages/s of a process whose tokenizer has so many threads."""
    environment = os.environ | {
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true",
    }
    command = [sys.executable, "-m", "benchmarks.tokenizing", "--once"]
    command += ["--folder", str(folder), "--passages", str(passages), "--device", device]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(run.stdout)


def mean_tokens(folder: Path, texts: list[str]) -> float:
    """Return the mean tokens of the passages."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds

    rows = AutoTokenizer.from_pretrained(folder)([f"passage: {text}" for text in texts])
    return statistics.fmean(map(len, rows["input_ids"]))


def main() -> None:
    """Measure a process for each number of threads, in turn, and print or write the table."""
    options = parse_options(
        __doc__,
        rounds=(3, "of every number of threads"),
        passages=(10_000, "of a build"),
        device=("cpu", "of the encoder", ("cpu", "cuda")),
        folder=(data.WORK / "tokenizer", "the encoder; written if it is not there"),
        once=(False, "print passages/s of this process alone"),
    )
    texts = data.wiki18_passages(least=options.passages)[: options.passages]
    if not options.folder.exists():
        data.write_random_model(options.folder, texts[:10_000], E5)
    if options.once:
        sys.stdout.write(f"{passages_per_s(options.folder, texts, options.device)}\n")
        return

    cores = len(os.sched_getaffinity(0))
    works = {
        threads: partial(in_process, options.folder, options.passages, options.device, threads)
        for threads in (1, 2, 4, 8, 16)
        if threads <= cores
    }
    rows: list[tuple[object, ...]] = []
    for threads, rates in in_turn(works, options.rounds).items():
        rate = statistics.median(rates)
        rows.append((threads, f"{rate:,.0f}", f"{1 / rate:.6f}"))

    tokens = mean_tokens(options.folder, texts)
    note = f"{len(texts):,} passages of {tokens:.0f} tokens; medians of {options.rounds} rounds on {cores} cores."
    table = f"{note}\n\n{markdown_table(HEADER, rows)}"
    sys.stdout.write(table)
    if options.docs:
        fill_section(options.docs, SECTION, table)


if __name__ == "__main__":
    main()
