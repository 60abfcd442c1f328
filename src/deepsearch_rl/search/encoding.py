"""From chunks to vectors on disk, resumed after a kill.

Chunks are encoded in blocks of ``block_rows``. A block's vectors are written to their rows of
``vectors.npy`` and flushed, then its number is appended to ``blocks.jsonl``. A run that finds both
beside a ``job.json`` equal to its own encodes only the missing blocks. As the same block is always
the same call of the same encoder, the bytes are the same whether or not there was a kill. Vectors
are written, not mapped: a full disk is an error then instead of a bus error.
"""

import contextlib
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from numpy.lib.format import open_memmap
from pydantic import Field

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import (
    AppendLog,
    atomic_file,
    file_digests,
    read_json,
    read_jsonl,
    remove_partials,
    sha256_json,
    write_json,
)
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Chunk, Record
from deepsearch_rl.search.encoders.encoder import (
    EncoderConfig,
    LimitedEncoder,
    Unread,
    Vectors,
    require_finite,
)
from deepsearch_rl.search.flat_index import link_or_copy

_LOG = logging.getLogger(__name__)
JOB_FILE = "job.json"
VECTORS_FILE = "vectors.npy"
BLOCKS_FILE = "blocks.jsonl"
# The part of a work folder that an encoding writes to
JOB_FOLDER = "encoding"


class EncodingConfig(Record):
    """How chunks become vectors on disk; their readers depend on ``dtype`` alone."""

    dtype: Literal["float32", "float16"] = Field(
        description="of the vectors on disk; float16 halves them"
    )
    block_rows: int = Field(ge=1, description="chunks encoded and recorded together")


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """Chunks to encode; ``folder`` is what the encoder's ``prepare`` wrote."""

    encoder: EncoderConfig
    folder: Path
    chunks: Sequence[Chunk]
    config: EncodingConfig

    def rows(self, block: int) -> range:
        """Return the rows of a block; the last block may be smaller."""
        start = block * self.config.block_rows
        return range(start, min(start + self.config.block_rows, len(self.chunks)))


class FinishedBlock(Record):
    """A line of ``blocks.jsonl``: the vectors of this block are in the file."""

    block: int = Field(ge=0)
    unread: Unread = Unread()


def encode_to_file(job: EncodingJob, chunks_sha256: str, out: Path, work: Path) -> None:
    """Write the vectors of at least one chunk, row N that of chunk N, to the .npy file ``out``, by one rename.

    A killed run continues in ``work``, which only this index uses, if ``chunks_sha256`` and all
    else are the same. It stays, so that a build that fails later need not encode again;
    :func:`remove_work` removes it. Passages that are longer than the encoder reads are counted in a
    warning. Raises ArtifactError where the disk is full, ``work`` holds damaged files, or a vector is
    not finite.
    """
    folder = _open_work(job, chunks_sha256, work)
    rows = len(job.chunks)

    # Opening it cuts off a line that a kill left unfinished
    with AppendLog(folder / BLOCKS_FILE) as log:
        unread = {
            line.block: line.unread for line in read_jsonl(folder / BLOCKS_FILE, FinishedBlock)
        }
        blocks = range(math.ceil(rows / job.config.block_rows))
        missing = [block for block in blocks if block not in unread]
        missing_rows = sum(len(job.rows(block)) for block in missing)

        if missing:
            encoder = job.encoder.open(job.folder)
            with ProgressBar("encode", missing_rows, "chunks") as bar:
                for block in missing:
                    chunks = [job.chunks[row] for row in job.rows(block)]
                    texts = [chunk.contents for chunk in chunks]
                    start = job.rows(block).start
                    vectors_BD = encoder.encode(texts, "passage")
                    require_finite(vectors_BD, _passage_names(chunks, start))
                    is_limited = isinstance(encoder, LimitedEncoder)
                    unread[block] = encoder.count_unread(texts) if is_limited else Unread()
                    write_rows(folder / VECTORS_FILE, start, vectors_BD, rows, job.config.dtype)
                    log.append(FinishedBlock(block=block, unread=unread[block]))
                    bar.advance(len(vectors_BD))

    _warn_of_unread(sum(unread.values(), Unread()), rows)
    with atomic_file(out) as partial:
        link_or_copy(folder / VECTORS_FILE, partial)


def _passage_names(chunks: Sequence[Chunk], start: int) -> Callable[[int], str]:
    return lambda row: f"passage {chunks[row].id!r} (row {start + row})"


def _warn_of_unread(unread: Unread, rows: int) -> None:
    if unread.texts:
        _LOG.warning(
            "%d of %d passages are longer than the encoder reads: their ends, %.1f %% of their text, "
            "are in no vector; cut shorter chunks (chunk.chunk_size), or raise the encoder's limit",
            unread.texts,
            rows,
            100 * unread.unread / unread.length,
        )


def _open_work(job: EncodingJob, chunks_sha256: str, work: Path) -> Path:
    """Return the folder of the job's work, emptied unless a run of this very job began it."""
    folder = work / JOB_FOLDER
    key = {
        "chunks_sha256": chunks_sha256,
        "rows": len(job.chunks),
        **job.config.model_dump(mode="json"),
        "encoder": job.encoder.model_dump(mode="json"),
        "learnt": sha256_json(file_digests(job.folder)),
        "state": job.encoder.state(),
    }
    job_path = folder / JOB_FILE
    is_begun = job_path.is_file() and (folder / VECTORS_FILE).is_file()
    if not is_begun or read_json(job_path) != key:
        remove_work(work)
        write_json(job_path, key)
    return folder


def remove_work(work: Path) -> None:
    """Remove an encoding's work, the job first, and its folders unless they hold other files."""
    for name in (JOB_FILE, BLOCKS_FILE, VECTORS_FILE):
        (work / JOB_FOLDER / name).unlink(missing_ok=True)
        remove_partials(work / JOB_FOLDER / name)

    for folder in (work / JOB_FOLDER, work):
        with contextlib.suppress(OSError):
            folder.rmdir()


def write_rows(path: Path, start: int, vectors_BD: Vectors, rows: int, dtype: str) -> None:
    """Write vectors to a .npy file of ``rows`` rows, made by the first call, and flush it; or raise ArtifactError."""
    try:
        if not path.is_file():
            with atomic_file(path) as partial:
                open_memmap(partial, "w+", dtype, (rows, vectors_BD.shape[1]))

        present = open_memmap(path, "r")

        with path.open("r+b") as file:
            file.seek(present.offset + start * present.strides[0])
            file.write(vectors_BD.astype(dtype).tobytes())
            file.flush()
            # The log says next that the block is there, also after a power cut
            os.fsync(file.fileno())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"the vectors cannot be written to {path} ({error}).") from error
