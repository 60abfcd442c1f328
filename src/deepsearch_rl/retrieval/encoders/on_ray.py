"""Encoding over a Ray cluster.

Ray Data feeds an actor pool of encoders with the numbers of blocks. Only numbers travel to the workers: each opens the
chunk file and the encoder's folder itself, which must therefore lie under the same paths on every node. Vectors come
back in any order, and the calling process writes them. When a node is lost, Ray makes its blocks again elsewhere; when
the calling process is lost, the next run continues from the written blocks.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.errors import DeepsearchError, UnavailableError
from deepsearch_rl.retrieval.encoders.choice import EncodingJob, RayConfig, open_encoder
from deepsearch_rl.retrieval.encoders.model_folder import ModelFolderConfig

LOOPBACK_ONLY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""For a Ray of this machine's own: no usage reports, and servers on 127.0.0.1 instead of every interface.

The second variable is how Ray is told to form no cluster beyond the machine; the name is from its first use.
"""


class BlockEncoder:
    """An actor of the pool: opens the encoder once, then encodes one block per call."""

    def __init__(self, job: EncodingJob) -> None:
        self._job, self._encoder = job, open_encoder(job.encoder, job.folder)

    def __call__(self, batch: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the vectors_BD of the one block of the batch, as bytes."""
        [block] = batch["block"].tolist()
        return {"block": batch["block"], "vectors": [self._job.encode(self._encoder, block).tobytes()]}


def encode_on_ray(
    job: EncodingJob, blocks: Sequence[int], config: RayConfig
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield every block's number and vectors_BD, in the order in which they are finished.

    Raises:
        UnavailableError: Ray is not installed, the cluster cannot be reached, or a worker fails.
    """
    encoder = job.encoder
    if isinstance(encoder, ModelFolderConfig) and encoder.revision is None:
        encoder = encoder.model_copy(update={"model": str(Path(encoder.model).resolve())})
    absolute = replace(job, folder=job.folder.resolve(), encoder=encoder)  # workers have other working directories
    with _connected(config) as ray:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False  # the caller's counts blocks
        numbers = ray.data.from_items([{"block": block} for block in blocks], override_num_blocks=len(blocks))
        encoded = numbers.map_batches(
            BlockEncoder,
            fn_constructor_args=(absolute,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=config.workers),
            num_cpus=config.cpus_per_worker,
            num_gpus=config.gpus_per_worker,
        )
        try:
            for batch in encoded.iter_batches(batch_size=1, batch_format="numpy", prefetch_batches=0):
                block = int(batch["block"][0])
                vectors = np.frombuffer(batch["vectors"][0], dtype=np.float32)
                yield block, vectors.reshape(len(job.rows(block)), -1)
        except ray.exceptions.RayError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, DeepsearchError):
                cause = getattr(cause, "cause", None) or cause.__cause__
            if cause is not None:
                raise UnavailableError(f"a worker of the Ray cluster cannot encode: {cause}") from error
            reason = str(error).strip().splitlines()[-1]
            raise UnavailableError(f"encoding over Ray failed ({type(error).__name__}: {reason}).") from error


@contextlib.contextmanager
def _connected(config: RayConfig) -> Iterator[Any]:
    """Yield the package ``ray``, connected; stop a Ray that was started here, leave a cluster running."""
    if config.address is not None:
        arguments: dict[str, Any] = {"address": config.address}
    else:
        os.environ.update(LOOPBACK_ONLY)  # read by Ray when it is imported, and by the processes that it starts
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
            "engine ray needs Ray: install the extra, `uv sync --extra ray` or `pip install 'deepsearch-rl[ray]'`."
        ) from error
    try:
        ray.init(log_to_driver=False, logging_level=logging.WARNING, **arguments)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        where = f"the Ray cluster at {config.address} cannot be reached" if config.address else "Ray cannot be started"
        raise UnavailableError(f"{where} (index.encoding.ray.address): {str(error).partition(chr(10))[0]}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
