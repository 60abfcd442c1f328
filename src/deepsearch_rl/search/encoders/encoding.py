"""The encoders that params can name, and the way from chunks to vectors on disk, resumed after a kill.

Chunks are encoded in blocks of ``block_rows``. A block's vectors are written to their rows of
``vectors.npy`` and flushed, then its number is appended to ``blocks.jsonl``. A run that finds both
beside a ``job.json`` equal to its own encodes only the missing blocks. As the same block is always
the same call of the same encoder, the bytes are the same whether or not there was a kill, and
whichever engine ran. Vectors are written, not mapped: a full disk is an error then instead of a bus
error.
"""

import contextlib
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from pydantic import Field, model_validator

from deepsearch_rl.core.errors import ArtifactError, DeepsearchError, UnavailableError, install_hint
from deepsearch_rl.core.files import (
    AppendLog,
    atomic_file,
    file_digests,
    read_json,
    read_jsonl,
    remove_partials,
    sha256_file,
    sha256_json,
    write_json,
)
from deepsearch_rl.core.own_code import own_path
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Chunk, Record
from deepsearch_rl.search.encoders.configs import (
    AnyEncoderConfig,
    OnnxConfig,
    OwnEncoderConfig,
    RemoteEncoderConfig,
    TfidfSvdConfig,
    TransformersConfig,
)
from deepsearch_rl.search.encoders.encoder import Encoder, Vectors, first_line
from deepsearch_rl.search.encoders.model_folder import ModelFolderConfig
from deepsearch_rl.search.vectors.flat import link_or_copy

JOB_FILE = "job.json"
VECTORS_FILE = "vectors.npy"
BLOCKS_FILE = "blocks.jsonl"
# The part of a work folder that an encoding writes to
JOB_FOLDER = "encoding"

# For a Ray that is started here: no usage reports, and (whatever the name says) no cluster, so that
# its servers listen on 127.0.0.1.
LOOPBACK_ONLY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def prepare_encoder(
    chunks: Sequence[Chunk], config: AnyEncoderConfig, folder: Path, seed: int
) -> None:
    """Write what the encoder learns from a bounded sample of the chunks to ``folder``; nothing where it has weights."""
    if isinstance(config, TfidfSvdConfig):
        from deepsearch_rl.search.encoders.tfidf_svd import (  # noqa: PLC0415
            TfidfSvdEncoder,
            sample_texts,
        )

        TfidfSvdEncoder.fit(sample_texts(chunks, config.fit_rows, seed), config, seed).save(folder)


def with_threads(config: AnyEncoderConfig | None, threads: int | None) -> AnyEncoderConfig | None:
    """Return an encoder's config with other threads where it has any; as it is for None."""
    if threads is None or not isinstance(config, ModelFolderConfig):
        return config
    return config.model_copy(update={"threads": threads})


def open_encoder(config: AnyEncoderConfig, folder: Path) -> Encoder:
    """Open the encoder of an index; ``folder`` is what :func:`prepare_encoder` made."""
    # The code of the other encoders is no dep of a stage
    match config:
        case TfidfSvdConfig():
            from deepsearch_rl.search.encoders.tfidf_svd import (  # noqa: PLC0415
                TfidfSvdEncoder,
            )

            return TfidfSvdEncoder.load(folder)
        case TransformersConfig():
            from deepsearch_rl.search.encoders.transformer import (  # noqa: PLC0415
                TransformersEncoder,
            )

            return TransformersEncoder(config)
        case OnnxConfig():
            from deepsearch_rl.search.encoders.onnx import OnnxEncoder  # noqa: PLC0415

            return OnnxEncoder(config)
        case RemoteEncoderConfig():
            from deepsearch_rl.search.encoders.remote import (  # noqa: PLC0415
                RemoteEncoder,
            )

            return RemoteEncoder(config)
        case OwnEncoderConfig():
            from deepsearch_rl.search.encoders.own import OwnEncoder  # noqa: PLC0415

            return OwnEncoder(config)


class RayConfig(Record):
    """The workers of engine ``ray``."""

    address: str | None = Field(
        description="`host:port` of a running cluster, or `auto`; null: Ray is started here"
    )
    workers: int = Field(ge=1, description="actors, each with an encoder of its own")
    cpus_per_worker: float = Field(gt=0)
    gpus_per_worker: float = Field(ge=0)
    object_store_mb: int = Field(ge=80, description="shared memory of a Ray that is started here")


class EncodingConfig(Record):
    """How chunks become vectors on disk; their readers depend on ``dtype`` alone."""

    engine: Literal["local", "ray"]
    dtype: Literal["float32", "float16"] = Field(
        description="of the vectors on disk; float16 halves them"
    )
    block_rows: int = Field(
        ge=1, description="chunks sorted by length, encoded and recorded together"
    )
    ray: RayConfig | None = Field(description="for engine ray; null for local")

    @model_validator(mode="after")
    def _ray_is_described(self) -> "EncodingConfig":
        if (self.engine == "ray") != (self.ray is not None):
            raise ValueError(
                "engine ray and the fields under ray go together; engine local wants ray: null"
            )

        return self


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """Chunks to encode; ``folder`` is what :func:`prepare_encoder` made. Can be sent to another process."""

    encoder: AnyEncoderConfig
    folder: Path
    chunks: Sequence[Chunk]
    config: EncodingConfig

    def rows(self, block: int) -> range:
        """Return the rows of a block; the last block may be smaller."""
        start = block * self.config.block_rows
        return range(start, min(start + self.config.block_rows, len(self.chunks)))

    def encode(self, encoder: Encoder, block: int) -> Vectors:
        """Return the vectors_BD of a block by one call, so that every engine gives the same bytes."""
        texts = [self.chunks[row].contents for row in self.rows(block)]
        return encoder.encode(texts, "passage")


class FinishedBlock(Record):
    """A line of ``blocks.jsonl``: the vectors of this block are in the file."""

    block: int = Field(ge=0)


def encode_to_file(job: EncodingJob, chunks_sha256: str, out: Path, work: Path) -> None:
    """Write the vectors of at least one chunk, row N that of chunk N, to the .npy file ``out``, by one rename.

    A killed run continues in ``work``, which only this index uses, if ``chunks_sha256`` and all
    else are the same. It stays, so that a build that fails later need not encode again;
    :func:`remove_work` removes it.

    Raises:
        ArtifactError: the disk is full, or ``work`` holds damaged files.
        UnavailableError: Ray is not installed, its cluster cannot be reached, or a worker fails.
    """
    folder = _open_work(job, chunks_sha256, work)
    rows = len(job.chunks)
    config = job.config

    # Opening it cuts off a line that a kill left unfinished
    with AppendLog(folder / BLOCKS_FILE) as log:
        finished = {line.block for line in read_jsonl(folder / BLOCKS_FILE, FinishedBlock)}
        blocks = range(math.ceil(rows / config.block_rows))
        missing = [block for block in blocks if block not in finished]
        missing_rows = sum(len(job.rows(block)) for block in missing)

        with ProgressBar("encode", missing_rows, "chunks") as bar:
            engine = _encode_on_ray if config.engine == "ray" else _encode_here

            # An engine opens the encoder even for no block at all.
            for block, vectors_BD in engine(job, missing) if missing else ():
                start = job.rows(block).start
                write_rows(folder / VECTORS_FILE, start, vectors_BD, rows, config.dtype)
                log.append(FinishedBlock(block=block))
                bar.advance(len(vectors_BD))

    with atomic_file(out) as partial:
        link_or_copy(folder / VECTORS_FILE, partial)


def _open_work(job: EncodingJob, chunks_sha256: str, work: Path) -> Path:
    """Return the folder of the job's work, emptied unless a run of this very job began it."""
    folder = work / JOB_FOLDER
    encoder = job.encoder
    weights = None
    if isinstance(encoder, ModelFolderConfig) and encoder.revision is None:
        # Others can appear under the same name; a commit of a hub names its weights.
        weights = sha256_json(file_digests(Path(encoder.model)))
    elif isinstance(encoder, OwnEncoderConfig):
        weights = sha256_file(own_path(encoder.code))

    key = {
        "chunks_sha256": chunks_sha256,
        "rows": len(job.chunks),
        "block_rows": job.config.block_rows,
        "dtype": job.config.dtype,
        "encoder": encoder.model_dump(mode="json"),
        "learnt": sha256_json(file_digests(job.folder)),
        "weights": weights,
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


def _encode_here(job: EncodingJob, blocks: Sequence[int]) -> Iterator[tuple[int, Vectors]]:
    """Yield every block's number and vectors_BD."""
    encoder = open_encoder(job.encoder, job.folder)
    for block in blocks:
        yield block, job.encode(encoder, block)


class BlockEncoder:
    """An actor of the pool: opens the encoder once, then encodes one block per call."""

    def __init__(self, job: EncodingJob) -> None:
        self._job = job
        self._encoder = open_encoder(job.encoder, job.folder)

    def __call__(self, batch: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the vectors_BD of the one block of the batch, as bytes."""
        [block] = batch["block"].tolist()
        return {
            "block": batch["block"],
            "vectors": [self._job.encode(self._encoder, block).tobytes()],
        }


def _encode_on_ray(job: EncodingJob, blocks: Sequence[int]) -> Iterator[tuple[int, Vectors]]:
    """Yield every block's number and vectors_BD, in the order in which they are finished.

    Only numbers travel to the workers: each opens the chunk file and the encoder's folder itself,
    which must therefore lie under the same paths on every node. When a node is lost, Ray makes its
    blocks again elsewhere.
    """
    config = job.config.ray
    assert config is not None

    # Workers have other working directories.
    encoder = job.encoder
    if isinstance(encoder, ModelFolderConfig) and encoder.revision is None:
        encoder = encoder.model_copy(update={"model": str(Path(encoder.model).resolve())})
    absolute = replace(job, folder=job.folder.resolve(), encoder=encoder)

    with _connected(config) as ray:
        # The caller's progress bar counts blocks.
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False

        # One block is one task, so that a worker that dies costs no more than one.
        items = [{"block": block} for block in blocks]
        numbers = ray.data.from_items(items, override_num_blocks=len(blocks))
        encoded = numbers.map_batches(
            BlockEncoder,
            fn_constructor_args=(absolute,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=config.workers),
            num_cpus=config.cpus_per_worker,
            num_gpus=config.gpus_per_worker,
        )
        batches = encoded.iter_batches(batch_size=1, batch_format="numpy", prefetch_batches=0)

        try:
            for batch in batches:
                block = int(batch["block"][0])
                vectors = np.frombuffer(batch["vectors"][0], dtype=np.float32)
                yield block, vectors.reshape(len(job.rows(block)), -1)
        except ray.exceptions.RayError as error:
            raise _ray_failure(error) from error


def _ray_failure(error: BaseException) -> UnavailableError:
    """Return what failed: the encoder's own error, which Ray wraps several times, or Ray itself."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, DeepsearchError):
        cause = getattr(cause, "cause", None) or cause.__cause__

    if cause is not None:
        return UnavailableError(f"a worker of the Ray cluster cannot encode: {cause}")

    # The last line is the worker's; the ones before it are Ray's traceback.
    reason = str(error).strip().splitlines()[-1]
    return UnavailableError(f"encoding over Ray failed ({type(error).__name__}: {reason}).")


@contextlib.contextmanager
def _connected(config: RayConfig) -> Iterator[Any]:
    """Yield the package ``ray``, connected; stop a Ray that was started here, leave a cluster running."""
    if config.address is not None:
        arguments: dict[str, Any] = {"address": config.address}
    else:
        # Read by Ray when it is imported, and by the processes that it starts
        os.environ.update(LOOPBACK_ONLY)
        arguments = {
            "num_cpus": max(1, round(config.workers * config.cpus_per_worker)),
            "num_gpus": round(config.workers * config.gpus_per_worker),
            "include_dashboard": False,
            "object_store_memory": config.object_store_mb << 20,
        }

    try:
        import ray  # noqa: PLC0415 - an extra
        import ray.data  # noqa: PLC0415
    except ImportError as error:
        raise UnavailableError(
            f"the engine ray of index.encoding needs Ray: {install_hint('ray')}."
        ) from error

    try:
        ray.init(log_to_driver=False, logging_level=logging.WARNING, **arguments)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        problem = "Ray cannot be started"
        if config.address:
            problem = f"the Ray cluster at {config.address} cannot be reached"

        raise UnavailableError(
            f"{problem} (index.encoding.ray.address): {first_line(error)}"
        ) from error

    try:
        yield ray
    finally:
        ray.shutdown()
