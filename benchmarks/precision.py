"""The precision of a neural encoder: what bfloat16 and int8 find, and how long they take.

    .venv/bin/python -m benchmarks.precision                       # 20 minutes, half of them training
    .venv/bin/python -m benchmarks.precision --steps 30 --limit 100    # a try

What is found is measured with a small encoder that is trained here on questions and their gold
passages (benchmarks/trained_encoder.py), over questions that it has not seen: recall@10 of the gold
passages, and recall@10 against float32, the share of float32's first ten that are among the first
ten. Speed is that of random weights in the shape of all-MiniLM-L6: CPU time on one thread, in
alternating rounds, tokenizing included.

A trained encoder is kept in the folder of --work; remove it to train again.
"""

import argparse
import random
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from tokenizers import Tokenizer

from benchmarks import data
from benchmarks.encoder_export import export_encoder
from benchmarks.measure import in_turn, parse_options, publish, timed
from benchmarks.trained_encoder import HELD_OUT, PASSAGE_TOKENS, Pair, train_encoder
from deepsearch_rl.core.records import Question
from deepsearch_rl.search.encoders.configs import OnnxConfig, TransformersConfig
from deepsearch_rl.search.encoders.encoder import Encoder, Kind, Vectors
from deepsearch_rl.search.encoders.onnx import OnnxEncoder
from deepsearch_rl.search.encoders.quantization import LINEAR, quantize_export
from deepsearch_rl.search.encoders.transformer import TransformersEncoder

TOP_K = 10
BATCH = 64
# Texts from which static quantization learns the ranges of activations
CALIBRATION_TEXTS = 128
EXPORT = Path("onnx") / "model.onnx"

FLOAT32 = "float32, torch"
BFLOAT16 = "bfloat16, torch"
ONNX = "float32, onnxruntime"
INT8 = "int8, onnxruntime"
STATIC = "int8 with fixed ranges"


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A corpus, questions to learn from, and questions that are held out."""

    name: str
    passages: Mapping[str, str]
    train: Sequence[Question]
    test: Sequence[Question]

    def pairs(self) -> Iterator[Pair]:
        """Yield the questions to learn from, each with each of its gold passages."""
        for question in self.train:
            for doc_id in question.metadata.supporting_doc_ids or ():
                yield question.question, self.passages[doc_id]


def read_set(
    name: str, files: Sequence[str], held_out: float, limit: int, seed: int
) -> QuestionSet:
    """Read a question set and hold out a part of its questions, of which at most ``limit`` are asked."""
    documents = list(data.read_documents(data.DATA / name))
    questions = list(data.read_questions(data.DATA / name, files, documents))
    random.Random(seed).shuffle(questions)
    count = int(held_out * len(questions))
    passages = {document.id: document.contents for document in documents}
    return QuestionSet(name, passages, questions[count:], questions[:count][:limit])


# --- encoders of one model


def open_encoders(folder: Path, texts: Sequence[str], max_tokens: int) -> dict[str, Encoder]:
    """Return the encoders of a plain transformers folder, after its exports were written beside it."""
    _write_exports(folder, texts, max_tokens)
    settings = {**data.RANDOM_ENCODER, "max_tokens": max_tokens, "batch_tokens": None}
    exported = {name: value for name, value in settings.items() if name != "dtype"}

    encoders: dict[str, Encoder] = {}
    for name, dtype in ((FLOAT32, "float32"), (BFLOAT16, "bfloat16")):
        config = {**settings, "model": str(folder), "dtype": dtype}
        encoders[name] = TransformersEncoder(TransformersConfig.model_validate(config))
    for name, root in (
        (ONNX, folder),
        (INT8, _beside(folder, "int8")),
        (STATIC, _beside(folder, "static")),
    ):
        config = {**exported, "model": str(root), "name": "onnx"}
        encoders[name] = OnnxEncoder(OnnxConfig.model_validate(config))

    return encoders


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f"{folder.name}-{suffix}")


def _write_exports(folder: Path, texts: Sequence[str], max_tokens: int) -> None:
    export_encoder(folder)
    int8 = _beside(folder, "int8")
    static = _beside(folder, "static")
    for root in (int8, static):
        shutil.rmtree(root, ignore_errors=True)

    quantize_export(folder, int8)
    shutil.copytree(int8, static)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(max_tokens)
    quantize_static(
        folder / EXPORT,
        static / EXPORT,
        CalibrationTexts(tokenizer, texts),
        op_types_to_quantize=list(LINEAR),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        # Linear layers alone, as in the other int8; their outputs stay in float32
        extra_options={"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": [*LINEAR]},
    )


class CalibrationTexts(CalibrationDataReader):
    """Inputs of an export, one text at a time."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        self._encodings = iter(tokenizer.encode_batch(list(texts)))

    def get_next(self) -> dict[str, NDArray[np.int64]] | None:
        """Return the inputs of the next text; None after the last."""
        encoding = next(self._encodings, None)
        if encoding is None:
            return None

        ids_1T = np.array([encoding.ids], dtype=np.int64)
        return {"input_ids": ids_1T, "attention_mask": np.ones_like(ids_1T)}


def embed(encoder: Encoder, texts: Sequence[str], kind: Kind, size: int | None = None) -> Vectors:
    """Return embeddings_ND of N texts, ``size`` of which are encoded together; None: all."""
    size = size or len(texts)
    parts = [
        encoder.encode(texts[start : start + size], kind) for start in range(0, len(texts), size)
    ]
    return np.concatenate(parts)


# --- what is found


@dataclass(frozen=True, slots=True)
class Found:
    """The first ten of every question, and how many of the gold passages are among them on average."""

    tops_QK: NDArray[np.int64]
    recall: float

    def overlap(self, other: "Found") -> float:
        """Return the share of the other's first ten that are among these."""
        pairs = zip(self.tops_QK.tolist(), other.tops_QK.tolist(), strict=True)
        return statistics.fmean(len({*ours} & {*theirs}) / TOP_K for ours, theirs in pairs)


def find_all(
    encoders: Mapping[str, Encoder], questions: QuestionSet
) -> dict[tuple[str, str, str], Found]:
    """Return what is found by (precision of queries, of passages, how queries are encoded)."""
    texts = [question.question for question in questions.test]
    passages: dict[str, Vectors] = {}
    queries: dict[tuple[str, str], Vectors] = {}
    for name, encoder in encoders.items():
        passages[name] = embed(encoder, list(questions.passages.values()), "passage")
        queries[name, "together"] = embed(encoder, texts, "query", BATCH)
        queries[name, "singly"] = embed(encoder, texts, "query", 1)
        sys.stderr.write(f"{questions.name}: {name}\n")

    results: dict[tuple[str, str, str], Found] = {}
    for (name, how), queries_QD in queries.items():
        exact = FLOAT32 if name == BFLOAT16 else ONNX
        for other in (name, exact):
            results[name, other, how] = find(queries_QD, passages[other], questions)

    return results


def find(queries_QD: Vectors, passages_ND: Vectors, questions: QuestionSet) -> Found:
    """Rank all passages by cosine; ties by row."""
    tops_QK = np.argsort(-(queries_QD @ passages_ND.T), axis=1, kind="stable")[:, :TOP_K]
    ids = list(questions.passages)
    recalls: list[float] = []
    for question, rows_K in zip(questions.test, tops_QK, strict=True):
        gold = set(question.metadata.supporting_doc_ids or ())
        recalls.append(len(gold & {ids[row] for row in rows_K}) / len(gold))

    return Found(tops_QK, statistics.fmean(recalls))


# Precision of queries, of passages, and whether queries are encoded singly
FOUND_ROWS = (
    (FLOAT32, FLOAT32, "together"),
    (ONNX, ONNX, "together"),
    (BFLOAT16, BFLOAT16, "together"),
    (BFLOAT16, FLOAT32, "together"),
    (INT8, INT8, "together"),
    (INT8, INT8, "singly"),
    (INT8, ONNX, "together"),
    (INT8, ONNX, "singly"),
    (STATIC, STATIC, "together"),
    (STATIC, ONNX, "together"),
)


def recall_rows(results: Sequence[Mapping[tuple[str, str, str], Found]]) -> Iterator[list[str]]:
    """Yield a row for each combination, with three cells for each question set."""
    exact = FOUND_ROWS[0]
    for queries, passages, how in FOUND_ROWS:
        row = [queries, passages, how]
        for found in results:
            result = found[queries, passages, how]
            change = 100 * (result.recall / found[exact].recall - 1)
            row += [
                f"{result.recall:.3f}",
                f"{change:+.1f}%",
                f"{result.overlap(found[exact]):.3f}",
            ]
        yield row


# --- speed


def measure_speed(
    encoders: Mapping[str, Encoder], queries: Sequence[str], passages: Sequence[str], rounds: int
) -> Iterator[list[str]]:
    """Yield a row for each precision: CPU ms of a query alone, of one of 64 and of a passage, and their ratios."""
    loads: dict[str, tuple[Sequence[str], Kind, int]] = {
        "alone": (queries, "query", 1),
        "batch": (queries, "query", BATCH),
        "passage": (passages, "passage", BATCH),
    }
    cells: dict[str, list[str]] = {name: [name] for name in encoders}
    for texts, kind, size in loads.values():
        works: dict[str, Callable[[], tuple[float, Vectors]]] = {}
        for name, encoder in encoders.items():
            embed(encoder, texts, kind, size)
            works[name] = partial(timed, partial(embed, encoder, texts, kind, size))

        runs = in_turn(works, rounds)
        seconds = {name: [run[0] for run in results] for name, results in runs.items()}
        for name, times in seconds.items():
            ratios = [own / exact for own, exact in zip(times, seconds[FLOAT32], strict=True)]
            cells[name].append(f"{1000 * statistics.median(times) / len(texts):.2f}")
            cells[name].append(f"{statistics.median(ratios):.2f}x")

    yield from cells.values()


def main() -> None:
    """Train unless it was done before, then print both tables."""
    options = parse_options(
        __doc__,
        steps=(150, "of training"),
        limit=(1000, "held-out questions of a set at most"),
        rounds=(7, "of every measurement of speed"),
        seed=(0, "of training and of what is held out"),
        work=(data.WORK / "precision", "models"),
    )
    sets = [read_set(*row, options.limit, options.seed) for row in HELD_OUT]
    speed(options)
    recall(options, sets)


def recall(options: argparse.Namespace, sets: Sequence[QuestionSet]) -> None:
    """Publish what is found."""
    passages = [text for one in sets for text in one.passages.values()]
    folder = options.work / f"trained-{options.steps}-{options.seed}"
    if not (folder / "model.safetensors").is_file():
        pairs = [pair for one in sets for pair in one.pairs()]
        seconds, losses = timed(
            lambda: train_encoder(folder, passages, pairs, options.steps, options.seed)
        )
        sys.stderr.write(f"trained in {seconds:.0f} CPU s; the last loss was {losses[-1]:.2f}\n")

    sample = random.Random(options.seed).sample(passages, CALIBRATION_TEXTS)
    encoders = open_encoders(folder, sample, PASSAGE_TOKENS)
    asked = [one for one in sets if one.test]
    results = [find_all(encoders, one) for one in asked]

    header = ["queries", "passages", "queries encoded"]
    for one in asked:
        header += [f"{one.name}, recall@10", "to float32", "recall@10 against float32"]
    sizes = [
        f"{len(one.test)} questions over {len(one.passages):,} passages of {one.name}"
        for one in asked
    ]
    publish(
        options,
        "precision: what is found",
        header,
        list(recall_rows(results)),
        after=f"{'; '.join(sizes)}.",
    )


def speed(options: argparse.Namespace) -> None:
    """Publish how long an encoder in the shape of all-MiniLM-L6 takes."""
    texts = data.wiki18_passages()
    folder = options.work / "minilm"
    if not (folder / "model.safetensors").is_file():
        data.write_random_model(folder, texts[:10_000], data.MINILM)

    encoders = open_encoders(folder, texts[:CALIBRATION_TEXTS], data.RANDOM_ENCODER["max_tokens"])
    queries = data.draw_queries(texts, 1, BATCH)
    rows = list(measure_speed(encoders, queries, texts[: BATCH // 2], options.rounds))
    header = (
        "precision",
        "CPU ms, a query alone",
        "to float32",
        f"a query of {BATCH} together",
        "to float32",
        "a passage",
        "to float32",
    )
    publish(options, "precision: speed", header, rows)


if __name__ == "__main__":
    main()
