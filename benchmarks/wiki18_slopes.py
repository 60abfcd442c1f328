"""What an index over wiki-18 takes, by slopes: time, disk and memory of builds at sizes that this machine can hold.

    .venv/bin/python -m benchmarks.wiki18_slopes                                  # 100k, 300k, 1M: about 15 minutes
    .venv/bin/python -m benchmarks.wiki18_slopes --sizes 10000 30000 --encoder-passages 16          # a minute

Every size is built in a process of its own, of which a thread reads RssAnon from /proc/self/status:
memory that belongs to the process alone, not the pages of mapped files, which the kernel can drop
at any time. The build is the library's own; only the encoder is a stand-in that gives random
vectors, since encoding is measured apart from it, with a model of e5-base's shape. A part's seconds
are CPU seconds, without those of a part inside it.
"""

import contextlib
import json
import multiprocessing
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

import stages  # noqa: F401 - sets one thread per library, before any is imported
from benchmarks.data import RANDOM_ENCODER, WORK, index_config, wiki18_passages, write_random_model
from benchmarks.measure import markdown_table, parse_options, publish, size_mb, status_kb, timed
from deepsearch_rl.core.progress import track
from deepsearch_rl.search import build
from deepsearch_rl.search.bm25.bm25 import Bm25Index
from deepsearch_rl.search.encoders import encoding
from deepsearch_rl.search.encoders.encoder import normalise_rows
from deepsearch_rl.search.vectors import building

WIKI18_ROWS = 21_015_324
DIMENSION = 768
REST = "other"
FUNCTIONS = {
    "digest": (build, "sha256_file"),
    "rows": (build, "write_rows"),
    "bm25": (Bm25Index, "build"),
    "vectors": (build, "encode_to_file"),
    "training": (build, "build_vector_index"),
    "adding": (building, "_add"),
}
"""The parts of a build, and the function that is each of them."""
PARTS = (*FUNCTIONS, REST)
POLL_INTERVAL_S = 0.01
WORDS_OF_EACH = 50
ROWS_PER_NEW_WORD = 4
CHANGES = {
    "encoding": {"engine": "local", "dtype": "float16", "block_rows": 4096, "ray": None},
    "vectors": {
        "kind": "ivf_pq_refine", "m": 96, "nbits": 8, "nprobe": 16, "refine_factor": 10, "device": "cpu",
        "search_device": "cpu", "nlist": 1024,
        "train_rows": 65_536,
    },
}  # fmt: skip
"""Of the tiny profile's index: float16 vectors and IVF-PQ with refinement."""
Figures = dict[str, float]


def write_corpus(path: Path, passages: Sequence[str], rows: int) -> None:
    """Write synthetic passages in FlashRAG's layout; a smaller corpus is the head of a larger one.

    A passage joins fifty words from each of two real ones, so that words are as frequent and as
    long. Every fourth holds a word that no other has, as names do (Heaps' law with the usual
    constants: a few million terms).
    """
    rng = random.Random(18)
    texts: list[tuple[str, list[str]]] = []
    for passage in passages:
        title, _, text = passage.partition("\n")
        texts.append((title, text.split()))

    with path.open("w", encoding="utf-8") as out:
        for row in track(range(rows), "write passages", rows, "passages"):
            drawn = rng.choices(texts, k=2)
            words = [f"name{row:x}"] if row % ROWS_PER_NEW_WORD == 0 else []
            for _, text in drawn:
                start = rng.randrange(max(1, len(text) - WORDS_OF_EACH))
                words += text[start : start + WORDS_OF_EACH]

            title, _ = drawn[0]
            values = {"id": str(row), "contents": f"{title}\n{' '.join(words)}"}
            out.write(json.dumps(values, ensure_ascii=False) + "\n")


def measure_build(passages: Sequence[str], rows: int, work: Path) -> tuple[Figures, Figures]:
    """Build an index over synthetic passages in this process; return costs, and the highest RssAnon of each part."""
    write_corpus(work / "passages.jsonl", passages, rows)
    cpu_s = dict.fromkeys(PARTS, 0.0)
    anonymous_mb = dict.fromkeys(PARTS, 0.0)
    running = [REST]
    since_s = time.process_time()
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(POLL_INTERVAL_S):
            anonymous_mb[running[-1]] = max(
                anonymous_mb[running[-1]], status_kb("RssAnon") * 1024 / 1e6
            )

    def charge() -> None:
        nonlocal since_s
        now_s = time.process_time()
        cpu_s[running[-1]] += now_s - since_s
        since_s = now_s

    @contextlib.contextmanager
    def part(name: str) -> Iterator[None]:
        charge()
        running.append(name)
        yield
        charge()
        running.pop()

    def encode(texts: Sequence[str], _kind: str) -> NDArray[np.float32]:
        return normalise_rows(generator.standard_normal((len(texts), DIMENSION), dtype=np.float32))

    generator = np.random.default_rng(0)
    encoding.open_encoder = lambda *_: SimpleNamespace(encode=encode)
    build.prepare_encoder = lambda _chunks, _config, folder, _seed: folder.mkdir(parents=True)
    for name, (module, function) in FUNCTIONS.items():
        setattr(module, function, part(name)(getattr(module, function)))
    watcher = threading.Thread(target=watch)
    watcher.start()
    build.build_index(work / "passages.jsonl", work / "index", index_config(**CHANGES), seed=0)
    charge()
    finished.set()
    watcher.join()
    costs = {f"{name}, CPU s": seconds for name, seconds in cpu_s.items()}
    costs |= {"all, CPU s": sum(cpu_s.values()), "index, MB": size_mb(work / "index")}
    return costs, anonymous_mb


def measure_encoder(passages: Sequence[str], count: int, folder: Path) -> str:
    """Encode ``count`` passages on one core with a model of e5-base's shape; return what encoding wiki-18 takes."""
    from deepsearch_rl.search.encoders import transformer as transformer  # noqa: PLC0415 - seconds to import

    write_random_model(folder, passages, {"max_position_embeddings": 512})
    config = transformer.TransformersConfig.model_validate({**RANDOM_ENCODER, "model": str(folder)})
    encoder = transformer.TransformersEncoder(config)
    sample = random.Random(0).sample(passages, count)
    encoder.encode(sample[:4], "passage")
    cpu_s, _ = timed(lambda: encoder.encode(sample, "passage"))
    return (
        f"Encoding with a model of e5-base's shape: {count} real passages took {cpu_s / count:.3f} CPU seconds each on "
        f"one core, which is {cpu_s / count * WIKI18_ROWS / 86400:,.0f} core days for all."
    )


def with_line(builds: Mapping[int, Figures]) -> dict[str, list[float]]:
    """Return every figure by size, and the value of its least-squares line at wiki-18's rows.

    A line that falls is noise about something that does not depend on the rows, and gives the mean,
    as one size does.
    """
    lines = {}
    for name in next(iter(builds.values())):
        values = [figures[name] for figures in builds.values()]
        slope, start = np.polyfit(list(builds), values, 1) if len(builds) > 1 else (0.0, 0.0)
        lines[name] = [*values, start + slope * WIKI18_ROWS if slope > 0 else np.mean(values)]

    return lines


def _cells(lines: Mapping[str, Sequence[float]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, values in lines.items():
        rows.append((name, *(f"{value:,.1f}" for value in values)))

    return rows


def main() -> None:
    """Measure and print the tables."""
    options = parse_options(
        __doc__,
        sizes=([100_000, 300_000, 1_000_000], "passages"),
        encoder_passages=(200, "passages that are encoded"),
        work=(WORK, "for scratch folders"),
    )
    passages = wiki18_passages(least=1000)
    options.work.mkdir(parents=True, exist_ok=True)
    costs: dict[int, Figures] = {}
    memory: dict[int, Figures] = {}

    for rows in options.sizes:
        with (
            TemporaryDirectory(dir=options.work) as work,
            multiprocessing.get_context("spawn").Pool(1) as pool,
        ):
            costs[rows], memory[rows] = pool.apply(measure_build, (passages, rows, Path(work)))

        sys.stderr.write(f"{rows} passages: {costs[rows]}\n")

    with TemporaryDirectory(dir=options.work) as work:
        encoder_text = measure_encoder(passages, options.encoder_passages, Path(work))
    peaks = with_line(memory)

    # Of every size, and of the values on the lines
    peaks["the whole build"] = list(map(max, *peaks.values()))
    names = [*(f"{rows:,}" for rows in costs), f"{WIKI18_ROWS:,} (line)"]
    cost_rows = _cells(with_line(costs))
    memory_rows = _cells(peaks)
    before = markdown_table(("passages", *names), cost_rows)
    publish(
        options,
        "wiki18-slopes",
        ("RssAnon at most, MB", *names),
        memory_rows,
        before=before,
        after=encoder_text,
    )


if __name__ == "__main__":
    main()
