"""Opening the retrievers of an index folder: BM25, dense, and whichever hybrid was learnt from its questions."""

from pathlib import Path

import numpy as np

from deepsearch_rl.retrieval import manifest
from deepsearch_rl.retrieval.encoders.choice import open_encoder
from deepsearch_rl.retrieval.fusion import ReciprocalRankFusion
from deepsearch_rl.retrieval.hybrid.features import FEATURES
from deepsearch_rl.retrieval.hybrid.question_parts import SourceNames
from deepsearch_rl.retrieval.hybrid.retriever import CandidateFinder, HybridRetriever
from deepsearch_rl.retrieval.hybrid.sentence_terms import SentenceTerms
from deepsearch_rl.retrieval.hybrid.weights import FusionWeights
from deepsearch_rl.retrieval.manifest import IndexConfig
from deepsearch_rl.retrieval.ranking import Retriever
from deepsearch_rl.retrieval.row_table import RowTable
from deepsearch_rl.retrieval.sparse.choice import open_sparse
from deepsearch_rl.retrieval.vectors.dense import DenseRetriever
from deepsearch_rl.retrieval.vectors.opening import open_vector_index


def open_retriever(folder: Path, config: IndexConfig, weights: FusionWeights | None, name: str) -> Retriever:
    """The retriever of a name: ``bm25``, ``dense`` or ``hybrid``.

    The hybrid is the learnt one, the better half where learning did not help, or what ``fusion.unlearned`` says where
    nothing was learnt.

    Raises:
        ArtifactError: a file is missing or damaged.
    """
    if name == "hybrid":
        return _open_hybrid(folder, config, weights)
    if name == "bm25":
        return open_sparse(folder / manifest.BM25_FOLDER, config.bm25)
    return _open_dense(folder, config)


def open_halves(folder: Path, config: IndexConfig) -> tuple[Retriever, Retriever]:
    """BM25 and dense."""
    return open_sparse(folder / manifest.BM25_FOLDER, config.bm25), _open_dense(folder, config)


def open_finder(folder: Path, config: IndexConfig, terms_folder: Path) -> CandidateFinder:
    """What finds the hybrid's candidates; ``terms_folder`` is usually that of the index."""
    bm25, dense = open_halves(folder, config)
    table = RowTable.open(folder / manifest.ROWS_FOLDER)
    return CandidateFinder(
        bm25=bm25,
        dense=dense,
        terms=SentenceTerms.open(terms_folder),
        table=table,
        names=SourceNames.of(table.sources),
        depth=config.fusion.depth,
        source_depth=config.fusion.source_depth,
    )


def _open_hybrid(folder: Path, config: IndexConfig, weights: FusionWeights | None) -> Retriever:
    ranking = weights.ranking if weights else config.fusion.unlearned
    if ranking == "reciprocal_ranks":
        return ReciprocalRankFusion(*open_halves(folder, config), config.fusion)
    if weights is None or ranking != "learned":
        return open_retriever(folder, config, None, ranking)
    weights_F = np.array([weights.weights[name] for name in FEATURES])
    return HybridRetriever(open_finder(folder, config, folder / manifest.TERMS_FOLDER), weights_F)


def _open_dense(folder: Path, config: IndexConfig) -> Retriever:
    encoder = open_encoder(config.encoder, folder / manifest.ENCODER_FOLDER)
    return DenseRetriever(encoder, open_vector_index(folder / manifest.DENSE_FOLDER, config.vectors))
