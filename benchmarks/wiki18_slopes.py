"""What an index over wiki-18 takes, by slopes: time, disk and memory of builds at sizes that this machine can hold.

    .venv/bin/python -m benchmarks.wiki18_slopes                                  # 100k, 300k, 1M: about 15 minutes
    .venv/bin/python -m benchmarks.wiki18_slopes --sizes 10000 30000 --encoder-passages 16          # a minute
    .venv/bin/python -m benchmarks.wiki18_slopes --sizes 1000000 --encoder-passages 0               # one size more
    .venv/bin/python -m benchmarks.wiki18_slopes --sizes --encoder-passages 0     # the tables of what was measured

Every size is built in a process of its own, while this one reads RssAnon from /proc/<pid>/status: memory that belongs
to the process alone, not the pages of mapped files, which the kernel can drop at any time. The build is the library's
own; only the encoder is a stand-in, since encoding is measured apart from it, with a model of e5-base's shape. A part's
seconds are CPU seconds, without those of a part inside it. Results are added to a JSON file, a size at a time; a size
that is measured again replaces the earlier figures.
"""

import contextlib
import hashlib
import json
import math
import multiprocessing
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import stages  # noqa: F401 - sets one thread per library, before any is imported
from benchmarks.data import DATA, WORK, index_config, wiki18_passages, write_random_model
from benchmarks.measure import markdown_table, parse_options, publish_text, status_kb, timed
from deepsearch_rl.files import read_record, write_json
from deepsearch_rl.progress import track
from deepsearch_rl.records import Record
from deepsearch_rl.retrieval import build
from deepsearch_rl.retrieval.encoders import encoding
from deepsearch_rl.retrieval.manifest import IndexConfig
from deepsearch_rl.retrieval.vectors import building

WIKI18_ROWS = 21_015_324
REST = "other"
FUNCTIONS = {
    "digest": (build, "sha256_file"),
    "rows": (build, "write_rows"),
    "bm25": (build.Bm25Index, "build"),
    "vectors": (build, "encode_to_file"),
    "training": (build, "build_vector_index"),
    "adding": (building, "_add"),
}
"""The parts of a build, and the function that is each of them."""
PARTS = (*FUNCTIONS, REST)
DIMENSION = 768
DIRECTIONS, DIRECTIONS_PER_TEXT = 4096, 8
MB = 1e6
POLL_INTERVAL_S = 0.01
DISK_EVERY = 100
"""Polls of memory between two of disk."""
WORDS_OF_EACH = 50
ROWS_PER_NEW_WORD = 4
CHANGES = {
    "encoding": {"engine": "local", "dtype": "float16", "block_rows": 4096, "ray": None},
    "vectors": {
        "kind": "ivf_pq_refine", "m": 96, "nbits": 8, "nprobe": 16, "refine_factor": 10, "device": "cpu", "nlist": 1024,
        "train_rows": 65_536,
    },
}  # fmt: skip
"""Of the tiny profile's index: float16 vectors and IVF-PQ with refinement."""
ENCODER = {
    "name": "transformers", "revision": None, "pooling": "mean", "query_prefix": "query: ",
    "passage_prefix": "passage: ", "max_tokens": 512, "batch_tokens": 4096, "threads": 1, "device": "cpu",
    "dtype": "float32",
}  # fmt: skip


class BuildCost(Record):
    """What one build took: CPU seconds and highest RssAnon while each part ran; index and unfinished work on disk."""

    cpu_s: dict[str, float]
    anon_bytes: dict[str, int]
    index_bytes: int
    disk_peak_bytes: int


class EncoderSlope(Record):
    """CPU seconds of one core per passage, with the tokens that a passage has on average."""

    passages: int
    tokens: float
    cpu_s: float
    parameters: int
    """Without the vocabulary's, which are looked up and not multiplied."""


class Results(Record):
    """All that was measured, so that sizes can be measured on different days."""

    builds: dict[int, BuildCost] = Field(default_factory=dict)
    encoder: EncoderSlope | None = None


# --- the process that builds ----------------------------------------------------------------------------------------


class StubEncoder:
    """Gives every text the sum of eight fixed random directions, chosen by the text's digest."""

    dimension = DIMENSION

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._directions_CD = rng.standard_normal((DIRECTIONS, DIMENSION), dtype=np.float32)

    def encode(self, texts: Sequence[str], kind: str) -> NDArray[np.float32]:  # noqa: ARG002 - the protocol's
        """Return normalised vectors_ND of N texts."""
        size = 2 * DIRECTIONS_PER_TEXT
        digests = b"".join(hashlib.blake2b(text.encode(), digest_size=size).digest() for text in texts)
        directions_NK = np.frombuffer(digests, np.uint16).reshape(len(texts), -1) % DIRECTIONS
        vectors_ND = np.stack([self._directions_CD[directions_K].sum(axis=0) for directions_K in directions_NK])
        return vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)


def _build(corpus: Path, index: Path, config: IndexConfig, reports: Connection) -> None:
    """Build with a stand-in for the encoder; when a part begins or ends, report what ran until then and what runs."""
    running, started_s = [REST], time.process_time()

    def report(following: str) -> None:
        nonlocal started_s
        reports.send((running[-1], time.process_time() - started_s, following))
        started_s = time.process_time()

    @contextlib.contextmanager
    def part(name: str) -> Iterator[None]:
        report(name)
        running.append(name)
        try:
            yield
        finally:
            report(running[-2])
            running.pop()

    encoding.open_encoder = lambda *_: StubEncoder()
    build.prepare_encoder = lambda _chunks, _config, folder, _seed: folder.mkdir(parents=True)
    for name, (module, function) in FUNCTIONS.items():
        setattr(module, function, part(name)(getattr(module, function)))
    with part(REST):
        build.build_index(corpus, index, config, seed=0)


# --- measuring ------------------------------------------------------------------------------------------------------


def write_corpus(path: Path, passages: Sequence[str], rows: int) -> None:
    """Write synthetic passages in FlashRAG's layout; a smaller corpus is the head of a larger one.

    A passage joins fifty words from each of two real ones, so that words are as frequent and as long. Every fourth
    holds a word that no other has, as names do (Heaps' law with the usual constants: a few million terms).
    """
    rng = random.Random(18)
    texts = [(title, text.split()) for title, _, text in (passage.partition("\n") for passage in passages)]
    with path.open("w", encoding="utf-8") as out:
        for row in track(range(rows), "write passages", rows, "passages"):
            (_, first), (_, second), (title, _) = (rng.choice(texts) for _ in range(3))
            starts = [rng.randrange(max(1, len(words) - WORDS_OF_EACH)) for words in (first, second)]
            words = [*first[starts[0] :][:WORDS_OF_EACH], *second[starts[1] :][:WORDS_OF_EACH]]
            if row % ROWS_PER_NEW_WORD == 0:
                words.append(f"name{row:x}")
            passage = {"id": str(row), "contents": f"{title}\n{' '.join(words)}"}
            out.write(json.dumps(passage, ensure_ascii=False) + "\n")


def _size_bytes(folder: Path) -> int:
    """Return the bytes on disk under a folder that may be changing; a file with two names counts once."""
    blocks: dict[int, int] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                status = path.stat()
                blocks[status.st_ino] = status.st_blocks * 512
    return sum(blocks.values())


def measure_build(passages: Sequence[str], rows: int, work: Path) -> BuildCost:
    """Build an index over ``rows`` synthetic passages in a process of its own, and watch its memory and disk."""
    corpus, folder = work / f"passages-{rows}.jsonl", work / f"index-{rows}"
    write_corpus(corpus, passages, rows)
    folder.mkdir()
    reports, sender = multiprocessing.Pipe(duplex=False)
    arguments = (corpus, folder / "index", index_config(**CHANGES), sender)
    process = multiprocessing.get_context("spawn").Process(target=_build, args=arguments)
    process.start()
    sender.close()
    cpu_s, anon_bytes = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0)
    running, disk_bytes, polls = REST, 0, 0
    while process.is_alive():
        with contextlib.suppress(OSError, IndexError):  # the process has just ended
            anon_bytes[running] = max(anon_bytes[running], status_kb("RssAnon", process.pid) * 1024)
        if polls % DISK_EVERY == 0:
            disk_bytes = max(disk_bytes, _size_bytes(folder))
        polls += 1
        with contextlib.suppress(EOFError):
            if reports.poll(POLL_INTERVAL_S):
                part, seconds, running = reports.recv()
                cpu_s[part] += seconds
    process.join()
    if process.exitcode:
        sys.exit(f"the build of {rows} passages ended with status {process.exitcode}.")
    cost = BuildCost(
        cpu_s=cpu_s,
        anon_bytes=anon_bytes,
        index_bytes=_size_bytes(folder / "index"),
        disk_peak_bytes=max(disk_bytes, _size_bytes(folder)),
    )
    shutil.rmtree(folder)
    corpus.unlink()
    return cost


def measure_encoder(passages: Sequence[str], count: int, folder: Path) -> EncoderSlope:
    """Encode ``count`` passages on one core; ``folder`` gets a model of e5-base's shape."""
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - seconds to import

    from deepsearch_rl.retrieval.encoders.transformer import (  # noqa: PLC0415
        TransformersConfig,
        TransformersEncoder,
    )

    write_random_model(folder, passages, {"max_position_embeddings": 512})
    encoder = TransformersEncoder(TransformersConfig.model_validate({"model": str(folder), **ENCODER}))
    sample = random.Random(0).sample(passages, min(count, len(passages)))
    encoder.encode(sample[:4], "passage")
    cpu_s, _ = timed(lambda: encoder.encode(sample, "passage"))
    tokenizer, layers = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).encoder
    lengths = [len(tokenizer("passage: " + text, truncation=True, max_length=512).input_ids) for text in sample]
    return EncoderSlope(
        passages=len(sample),
        tokens=sum(lengths) / len(sample),
        cpu_s=cpu_s / len(sample),
        parameters=sum(weights.numel() for weights in layers.parameters()),
    )


# --- tables ---------------------------------------------------------------------------------------------------------


def with_line(sizes: Sequence[int], values: Sequence[float]) -> list[float]:
    """Return measured values, and that of their least-squares line at wiki-18's rows; NaN for fewer than two.

    A line that falls is noise about something that does not depend on the rows, and gives its mean.
    """
    if len(sizes) < 2:
        return [*values, math.nan]
    slope, start = np.polyfit(sizes, values, 1)
    return [*values, float(start + slope * WIKI18_ROWS) if slope > 0 else float(np.mean(values))]


def _cell(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def _build_tables(builds: dict[int, BuildCost]) -> list[str]:
    """Return the tables of CPU time and disk and of the highest RssAnon, both with the line's values for wiki-18.

    The memory of the whole build is the largest of its parts, on the line too: another part may lead at another size.
    """
    sizes, costs = list(builds), list(builds.values())
    names = [*(f"{size:,}" for size in sizes), f"{WIKI18_ROWS:,} (line)"]
    columns = {f"{part}, CPU s": [cost.cpu_s[part] for cost in costs] for part in PARTS}
    columns |= {
        "all, CPU s": [sum(cost.cpu_s.values()) for cost in costs],
        "index, MB": [cost.index_bytes / MB for cost in costs],
        "disk at most, MB": [cost.disk_peak_bytes / MB for cost in costs],
    }
    digits = [1] * len(PARTS) + [0] * (len(columns) - len(PARTS))
    lines = zip(*(with_line(sizes, values) for values in columns.values()), strict=True)
    rows = [(name, *map(_cell, values, digits)) for name, values in zip(names, lines, strict=True)]
    memory = {part: with_line(sizes, [cost.anon_bytes[part] / MB for cost in costs]) for part in PARTS}
    memory["the whole build"] = [max(column) for column in zip(*memory.values(), strict=True)]
    return [
        markdown_table(("passages", *columns), rows),
        markdown_table(("RssAnon at most, MB", *names), [(part, *map(_cell, row)) for part, row in memory.items()]),
    ]


def _encoder_text(encoder: EncoderSlope) -> str:
    """Return what encoding wiki-18 takes, by the slope of a few hundred passages."""
    days = encoder.cpu_s * WIKI18_ROWS / 86400
    flop = 2 * encoder.parameters * encoder.tokens
    return (
        f"Encoding with a model of e5-base's shape ({encoder.parameters / 1e6:.0f} million multiplied parameters): "
        f"{encoder.passages} real passages of {encoder.tokens:.0f} tokens took {encoder.cpu_s:.3f} CPU seconds each on "
        f"one core ({flop / encoder.cpu_s / 1e9:.0f} GFLOP/s), which is {days:,.0f} core days for all, or "
        f"{flop * WIKI18_ROWS / 1e18:.2f} EFLOP."
    )


def main() -> None:
    """Measure, keep the results and print the tables."""
    options = parse_options(
        __doc__,
        sizes=([100_000, 300_000, 1_000_000], "passages"),
        encoder_passages=(200, "passages that are encoded; 0: none"),
        data=(DATA, "real passages, where there are any"),
        scratch=(WORK / "wiki18", "emptied at the end"),
        results=WORK / "wiki18_slopes.json",
    )
    results = read_record(options.results, Results) if options.results.is_file() else Results()
    passages = wiki18_passages(options.data, least=1000)
    options.scratch.mkdir(parents=True)
    try:
        for rows in options.sizes:
            builds = {**results.builds, rows: measure_build(passages, rows, options.scratch)}
            results = results.model_copy(update={"builds": dict(sorted(builds.items()))})
            write_json(options.results, results.model_dump(mode="json"))
        if options.encoder_passages:
            encoder = measure_encoder(passages, options.encoder_passages, options.scratch / "encoder")
            results = results.model_copy(update={"encoder": encoder})
            write_json(options.results, results.model_dump(mode="json"))
    finally:
        shutil.rmtree(options.scratch)
    tables = _build_tables(results.builds) if results.builds else []
    publish_text(
        options, "wiki18-slopes", "\n".join([*tables, _encoder_text(results.encoder) if results.encoder else ""])
    )


if __name__ == "__main__":
    main()
