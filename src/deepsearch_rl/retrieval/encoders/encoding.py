"""From chunks to vectors on disk: hours of work for a large corpus, so that a kill must not cost it.

Chunks are encoded in blocks of ``block_rows``. A block is the window in which texts are sorted by length, the unit of
work of every engine and the unit of what a kill can cost: its vectors are written to their rows of ``vectors.npy`` and
flushed, then its number is appended to ``blocks.jsonl``. A run that finds both beside a ``job.json`` equal to its own
encodes only what is missing. As the same block is always the same call of the same encoder, the bytes are the same
whether or not there was a kill, and whichever engine ran.

Vectors are written, not mapped, while they are made: a full disk is an error then instead of a bus error, and memory
stays flat in the number of chunks.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import Field, model_validator

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import AppendLog, atomic_file, read_json, read_jsonl, sha256_file, sha256_json, write_json
from deepsearch_rl.progress import Meter
from deepsearch_rl.records import Chunk, Record
from deepsearch_rl.retrieval.encoders.choice import AnyEncoderConfig, open_encoder

JOB_FILE, VECTORS_FILE, BLOCKS_FILE = "job.json", "vectors.npy", "blocks.jsonl"
Vectors = tuple[int, NDArray[np.float32]]
"""A block's number and its vectors_BD."""


class RayConfig(Record):
    """Who encodes under engine ``ray``."""

    address: str | None = Field(description="of a running cluster's head, or `auto`; null: Ray is started here")
    workers: int = Field(ge=1, description="actors, each with an encoder of its own")
    cpus_per_worker: float = Field(gt=0)
    gpus_per_worker: float = Field(ge=0)


class EncodingConfig(Record):
    """How chunks become vectors on disk: nothing of it but ``dtype`` is seen by whoever reads them."""

    engine: Literal["local", "ray"]
    dtype: Literal["float32", "float16"] = Field(description="of the vectors on disk; float16 halves them")
    block_rows: int = Field(ge=1, description="chunks sorted by length, encoded and recorded together")
    ray: RayConfig | None = Field(description="for engine ray; null for local")

    @model_validator(mode="after")
    def _ray_is_described(self) -> "EncodingConfig":
        if (self.engine == "ray") != (self.ray is not None):
            raise ValueError("engine ray and the fields under ray go together; engine local wants ray: null")
        return self


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """What is encoded, with what; ``folder`` holds what the encoder learnt."""

    encoder: AnyEncoderConfig
    folder: Path
    chunks: Sequence[Chunk]
    block_rows: int

    @property
    def blocks(self) -> int:
        """Number of blocks, the last one perhaps smaller."""
        return -(-len(self.chunks) // self.block_rows)

    def rows(self, block: int) -> range:
        """The rows of a block."""
        return range(block * self.block_rows, min((block + 1) * self.block_rows, len(self.chunks)))


def encode_to_file(
    encoder: AnyEncoderConfig,
    folder: Path,
    chunks: Sequence[Chunk],
    chunks_sha256: str,
    out: Path,
    work: Path,
    config: EncodingConfig,
) -> None:
    """Write the vectors of all chunks, row N that of chunk N, to the .npy file ``out``; resume where a kill left off.

    Args:
        encoder: the encoder's parameters.
        folder: what :func:`~deepsearch_rl.retrieval.encoders.choice.prepare_encoder` made.
        chunks: at least one chunk.
        chunks_sha256: digest of the chunk file; work on another file is never continued.
        out: the vectors of one N x D matrix, float32 or float16, by one rename.
        work: a folder of this job's own, where unfinished work lies. It is left in place (sharing its bytes with
            ``out`` where both are on one file system), so that whoever builds on the vectors can begin again without
            encoding; remove it when the whole is done.
        config: engine, type and size of blocks.

    Raises:
        ArtifactError: the disk is full, or ``work`` holds damaged files.
    """
    job = EncodingJob(encoder, folder, chunks, config.block_rows)
    _keep_work_of(job, chunks_sha256, config, work)
    done = {finished.block for finished in read_jsonl(work / BLOCKS_FILE, FinishedBlock)}
    missing = [block for block in range(job.blocks) if block not in done]
    rows = sum(len(job.rows(block)) for block in missing)
    with AppendLog(work / BLOCKS_FILE) as finished, Meter("encode", rows, "chunks") as meter:
        for block, vectors_BD in _encode_locally(job, missing):
            write_rows(work / VECTORS_FILE, job.rows(block).start, vectors_BD, len(chunks), config.dtype)
            finished.append(FinishedBlock(block=block))
            meter.advance(len(vectors_BD))
    _publish(work / VECTORS_FILE, out)


class FinishedBlock(Record):
    """A line of ``blocks.jsonl``: the vectors of this block are in the file."""

    block: int = Field(ge=0)


def _keep_work_of(job: EncodingJob, chunks_sha256: str, config: EncodingConfig, work: Path) -> None:
    """Empty ``work`` unless it belongs to this very job."""
    key = {
        "chunks_sha256": chunks_sha256,
        "rows": len(job.chunks),
        "block_rows": config.block_rows,
        "dtype": config.dtype,
        "encoder": job.encoder.model_dump(mode="json"),
        "learnt": _digest(job.folder),
    }
    job_path = work / JOB_FILE
    if job_path.is_file() and read_json(job_path) == key:
        return
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / BLOCKS_FILE).touch()
    write_json(job_path, key)


def _digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return sha256_json({str(path.relative_to(folder)): sha256_file(path) for path in files})


def _encode_locally(job: EncodingJob, blocks: Sequence[int]) -> Iterator[Vectors]:
    if not blocks:
        return
    encoder = open_encoder(job.encoder, job.folder)
    for block in blocks:
        texts = [job.chunks[row].contents for row in job.rows(block)]
        yield block, encoder.encode(texts, "passage")


def write_rows(path: Path, start: int, vectors_BD: NDArray[np.float32], rows: int, dtype: str) -> None:
    """Put vectors into their rows of a .npy file of ``rows`` rows and wait for the disk; the first call makes the file.

    Raises:
        ArtifactError: the disk is full, or the file has another shape or type.
    """
    dimension = vectors_BD.shape[1]
    try:
        if not path.is_file():
            _create(path, rows, dimension, dtype)
        with path.open("r+b") as file:
            npy.read_magic(file)
            if npy.read_array_header_1_0(file) != ((rows, dimension), False, np.dtype(dtype)):
                raise ArtifactError(f"{path} holds no {rows} x {dimension} vectors of {dtype}; remove {path.parent}.")
            file.seek(start * dimension * np.dtype(dtype).itemsize, os.SEEK_CUR)
            file.write(vectors_BD.astype(dtype).tobytes())
            file.flush()
            os.fsync(file.fileno())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"the vectors cannot be written to {path} ({error}).") from error


def _create(path: Path, rows: int, dimension: int, dtype: str) -> None:
    header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (rows, dimension)}
    with atomic_file(path) as partial, partial.open("wb") as file:
        npy.write_array_header_1_0(file, header)
        file.truncate(file.tell() + rows * dimension * np.dtype(dtype).itemsize)


def _publish(vectors: Path, out: Path) -> None:
    """Make ``out`` by one rename, of the same bytes on disk where the file system can share them."""
    with atomic_file(out) as partial:
        partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            partial.hardlink_to(vectors)
            return
        shutil.copyfile(vectors, partial)
