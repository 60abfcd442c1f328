"""FAISS's own indexes beside ours: codes in memory, a mapped flat index, mapped codes with a mapped refinement.

Each function opens a folder that ``build_vector_index`` made; the FAISS files that it lacks are made once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.files import atomic_file
from deepsearch_rl.retrieval.ranking import Ranking
from deepsearch_rl.retrieval.vectors.approximate import ApproximateIndex, read_faiss
from deepsearch_rl.retrieval.vectors.building import INDEX_FILE, VECTORS_FILE, write_faiss
from deepsearch_rl.retrieval.vectors.config import IvfPqConfig, IvfPqRefineConfig, VectorsConfig
from deepsearch_rl.retrieval.vectors.flat import open_vector_file

FLAT_FILE = "flat.faiss"


@dataclass(frozen=True, slots=True)
class FaissIndex:
    """FAISS's ranking as it comes: equal scores in any order."""

    index: faiss.Index
    parameters: Any = None

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        return self.index.d

    def search(
        self, queries_QD: NDArray[np.float32], top_k: int, allowed_N: NDArray[np.bool_] | None = None
    ) -> list[Ranking]:
        """Search without a mask."""
        assert allowed_N is None
        scores_QK, rows_QK = self.index.search(queries_QD, top_k, params=self.parameters)
        return [Ranking(rows_K, scores_K) for scores_K, rows_K in zip(scores_QK, rows_QK, strict=True)]


def open_in_memory(folder: Path, config: VectorsConfig) -> ApproximateIndex:
    """Read product codes into anonymous memory, FAISS's own default."""
    assert isinstance(config, IvfPqConfig)
    return ApproximateIndex(faiss.read_index(str(folder / INDEX_FILE)), config)


def open_faiss_flat(folder: Path, config: VectorsConfig) -> FaissIndex:
    """Map ``IndexFlatIP``, or the scalar quantizer's float16 for a file of float16."""
    assert config.kind in ("flat", "ivf_pq_refine")
    file = open_vector_file(folder / VECTORS_FILE)
    if not (folder / FLAT_FILE).is_file():
        index: Any = faiss.IndexFlatIP(file.dimension)
        if file.vectors_ND.dtype == np.float16:
            half = faiss.ScalarQuantizer.QT_fp16
            index = faiss.IndexScalarQuantizer(file.dimension, half, faiss.METRIC_INNER_PRODUCT)
        for _, block_BD in file.blocks():
            index.add(block_BD)
        with atomic_file(folder / FLAT_FILE) as partial:
            write_faiss(index, partial)
    return FaissIndex(read_faiss(folder / FLAT_FILE))


def open_faiss_refine(folder: Path, config: VectorsConfig) -> FaissIndex:
    """Map the codes and, in ``IndexRefine``, a flat index of the vectors behind them."""
    assert isinstance(config, IvfPqRefineConfig)
    codes, flat = read_faiss(folder / INDEX_FILE), open_faiss_flat(folder, config).index
    search = faiss.SearchParametersIVF(**{"nprobe": config.nprobe})
    factor: Any = faiss.IndexRefineSearchParameters(k_factor=config.refine_factor, base_index_params=search)
    return FaissIndex(faiss.IndexRefine(codes, flat), factor)
