"""Inverted files on a GPU, by faiss-gpu: what it can hold, and the way there.

Limits of FAISS 1.15 without cuVS, which PyPI's wheel has not: codes of 8 bits in one of
``config.CODE_LENGTHS`` (``IVFPQ::isSupportedPQCodeLength``), at most 2,048 cells and candidates of
a search (``GPU_MAX_SELECTION_K``), and no filter: a search takes an ``IDSelector`` and does not
look at it, so denied rows would be found.

A block holds the lookup table of a query in shared memory, m x 256 entries. 96 of them fit into 48
KB as float16 and 48 as float32 (``GpuIndexIVFPQ::verifyPQSettings_``); hence float16.
"""

import faiss

from deepsearch_rl.core.errors import UnavailableError
from deepsearch_rl.search.vectors.config import IvfConfig, VectorsConfig

# What FAISS takes of a GPU besides the index, for intermediate results (``StandardGpuResources``)
MEMORY_BYTES = 1536 * 2**20


def require_device(config: VectorsConfig | None) -> None:
    """Raise UnavailableError if params ask for a GPU and this environment's FAISS, or this machine, has none.

    ``config`` is None where no vectors are built.
    """
    if not isinstance(config, IvfConfig) or not config.on_gpu:
        return
    if hasattr(faiss, "GpuClonerOptions") and faiss.get_num_gpus():
        return
    missing = "finds no GPU" if hasattr(faiss, "GpuClonerOptions") else "is faiss-cpu"
    raise UnavailableError(
        "the vectors' device or search_device is cuda, and the FAISS of this environment "
        f"{missing}: build with python.index, which `make gpu-environments` installs with "
        "faiss-gpu; to search on a GPU, install faiss-gpu in place of faiss-cpu where the search "
        "runs (they overwrite each other's files). Or set cpu: the files are the same."
    )


def copy_to_gpu(index: faiss.Index, rows: int = 0) -> faiss.Index:
    """Return a copy of an inverted file on the first GPU, with room for ``rows`` if it is not trained yet.

    Raises UnavailableError where FAISS refuses, mostly because the GPU's memory is full.
    """
    options = faiss.GpuClonerOptions()  # pyright: ignore[reportAttributeAccessIssue] - faiss-gpu alone has it
    # Of lookup tables; centroids, vectors and codes keep their type
    options.useFloat16 = True
    options.reserveVecs = rows
    resources = faiss.StandardGpuResources()  # pyright: ignore[reportAttributeAccessIssue]

    try:
        return faiss.index_cpu_to_gpu(resources, 0, index, options)  # pyright: ignore[reportAttributeAccessIssue]
    except RuntimeError as error:
        raise gpu_failed(error) from error


def gpu_failed(error: RuntimeError) -> UnavailableError:
    """Return the error for what FAISS raised on a GPU."""
    return UnavailableError(
        f"FAISS failed on the GPU ({error}). Besides the index (a row takes its code, or its "
        f"vector, and 8 bytes) it takes {MEMORY_BYTES / 2**30:g} GiB: free memory of the GPU, or "
        "set device and search_device to cpu."
    )
