"""Builds a vector index without holding the vectors in memory.

Training reads a seeded sample in file order; adding reads block by block. What stays in memory is
the FAISS index until it is written: 8 bytes and a code of m nbits / 8 bytes per row of product
codes, whole vectors for ``ivf_flat`` and ``hnsw``.
"""

from pathlib import Path
from typing import Any

import faiss
import numpy as np

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.search.vectors.config import HnswConfig, IvfConfig, PqConfig, VectorsConfig
from deepsearch_rl.search.vectors.flat import VectorFile, link_or_copy, open_vector_file
from deepsearch_rl.search.vectors.gpu import copy_to_gpu, gpu_failed, require_device

VECTORS_FILE = "vectors.npy"
INDEX_FILE = "index.faiss"
FAST_SCAN_BITS = 4


def build_vector_index(vectors: Path, folder: Path, config: VectorsConfig, seed: int) -> None:
    """Index a vectors file into ``folder``, which then holds what :func:`open_vector_index` reads and no more.

    Kinds that read whole vectors keep them as ``folder/vectors.npy``: ``vectors`` itself if it lies
    there, else a hard link to it, or a copy from another disk. Other kinds leave no such file in
    ``folder``.

    Raises:
        ArtifactError: the vectors file is missing or damaged, or the disk is full.
        ConfigError: the parameters do not fit the number or the dimension of the vectors.
        UnavailableError: ``device: cuda`` without faiss-gpu or without a GPU, or its memory is
            full.
    """
    require_device(config)
    if config.kind == "faiss":
        raise ConfigError(
            "vectors of kind faiss were built elsewhere: import them (`deepsearch retrieve "
            "import`, index.imported), or choose a kind that is built."
        )
    file = open_vector_file(vectors)
    folder.mkdir(parents=True, exist_ok=True)

    if config.kind == "flat":
        (folder / INDEX_FILE).unlink(missing_ok=True)
    else:
        index = _hnsw(file, config) if config.kind == "hnsw" else _ivf(file, config, seed)
        write_faiss(index, folder / INDEX_FILE)

    copy = folder / VECTORS_FILE

    if config.kind not in ("flat", "ivf_pq_refine"):
        copy.unlink(missing_ok=True)
    elif not (copy.exists() and copy.samefile(vectors)):
        link_or_copy(vectors, copy)


def _hnsw(file: VectorFile, config: HnswConfig) -> faiss.Index:
    index: Any = faiss.index_factory(
        file.dimension, f"HNSW{config.links},Flat", faiss.METRIC_INNER_PRODUCT
    )
    index.hnsw.efConstruction = config.ef_construction

    # The graph depends on the order in which vectors are linked
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        _add(index, file)
    finally:
        faiss.omp_set_num_threads(threads)

    return index


def _ivf(file: VectorFile, config: IvfConfig, seed: int) -> faiss.Index:
    sample = min(file.rows, config.train_rows)
    _check(file.dimension, sample, config)

    # fs: codes for fast scan; np: without polysemous training, because no search here uses it.
    codes = "Flat"
    if isinstance(config, PqConfig):
        layout = "fs" if config.nbits == FAST_SCAN_BITS else "np"
        codes = f"PQ{config.m}x{config.nbits}{layout}"
    index: Any = faiss.index_factory(
        file.dimension, f"IVF{config.nlist},{codes}", faiss.METRIC_INNER_PRODUCT
    )

    # Cells and codes are clustered separately.
    index.cp.seed = seed
    if isinstance(config, PqConfig):
        index.pq.cp.seed = seed
    index.nprobe = config.nprobe

    # Ascending, so that the file is read in one direction.
    rows_M = np.sort(np.random.default_rng(seed).choice(file.rows, sample, replace=False))
    sample_MD = file.vectors_ND[rows_M].astype(np.float32, copy=False)

    if config.device == "cpu":
        index.train(sample_MD)
        _add(index, file)
        return index

    # FAISS copies the seed of the codes alone.
    worker: Any = copy_to_gpu(index, file.rows)
    worker.cp.seed = seed

    try:
        worker.train(sample_MD)
        _add(worker, file)
    except RuntimeError as error:
        raise gpu_failed(error) from error

    return faiss.index_gpu_to_cpu(worker)  # pyright: ignore[reportAttributeAccessIssue] - faiss-gpu alone has it


def _check(dimension: int, sample: int, config: IvfConfig) -> None:
    """Refuse what FAISS cannot build from ``sample`` training vectors."""
    if sample < config.nlist:
        raise ConfigError(
            f"{sample} training vectors are too few for nlist = {config.nlist} cells; lower nlist "
            "or raise train_rows."
        )

    if isinstance(config, PqConfig) and dimension % config.m:
        raise ConfigError(
            f"vectors.m = {config.m} does not divide the encoder's dimension {dimension}."
        )

    if isinstance(config, PqConfig) and sample < 2**config.nbits:
        raise ConfigError(
            f"{sample} training vectors are too few for {2**config.nbits} codes per sub-quantizer; "
            "lower nbits or raise train_rows."
        )


def _add(index: faiss.Index, file: VectorFile) -> None:
    with ProgressBar("index", file.rows, "vectors") as bar:
        for _, block_BD in file.blocks():
            index.add(block_BD)
            bar.advance(len(block_BD))


def write_faiss(index: faiss.Index, path: Path) -> None:
    """Write an index file; raise ArtifactError where that fails, e.g. because the disk is full."""
    # FAISS hides the system's error, so that the most likely one is named.
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise ArtifactError(
            f"the vectors cannot be written to {path}; is the disk full?"
        ) from error
