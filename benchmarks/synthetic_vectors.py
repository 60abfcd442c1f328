"""Vectors that an IVF-PQ index finds as hard as wiki-18's, generated from a seed block by block.

The published index over wiki-18 (21 million passages, e5 vectors of 768 dimensions, nlist 1024, m
96, nbits 8) finds .598 / .812 / .822 of the true top 5 at nprobe 1 / 16 / 128. Two things make that
curve, and the generator has a handle for each. *How neighbours spread over cells* sets what nprobe
1 finds. *How far apart neighbours are, compared to the error of a code* sets the plateau. So a
vector is

    topic + article + passage,      normalised,

where all three are Gaussian with variances falling as 1 / i over 768 directions (embeddings fill
few directions well and the rest a little), turned by a random rotation, so that no sub-quantizer
sees a direction alone. An article has eight passages, scattered over the file. Few and strong
topics make cells that hold whole neighbourhoods, which lifts nprobe 1; loose passages, near those
of other articles, lower the plateau. A query is a passage moved by a fraction of the distance
between passages of an article.

Cells scale with the square root of the rows, as their number does in practice: 1024 sqrt(N / 21M),
122 for 300,000. Topics scale with the cells.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.search.encoders.encoder import normalise_rows

DIMENSION = 768
WIKI_ROWS = 21_000_000
WIKI_CELLS = 1024
ARTICLE_PASSAGES = 8
TOPICS_PER_CELL = 2.0
PASSAGE_SIZE = 0.75
QUERY_MOVE = 0.3
BLOCK_ROWS = 8192


def cells_of(rows: int) -> int:
    """Return the number of cells that keeps wiki-18's relation to the square root of the rows."""
    return round(WIKI_CELLS * math.sqrt(rows / WIKI_ROWS))


def write_synthetic(
    folder: Path, rows: int, queries: int, dtype: str, seed: int
) -> tuple[Path, Path]:
    """Write ``vectors.npy`` (rows x 768) and ``queries.npy`` (float32) unless they are there; return their paths."""
    vectors_path = folder / "vectors.npy"
    queries_path = folder / "queries.npy"
    if queries_path.exists():
        return vectors_path, queries_path
    folder.mkdir(parents=True, exist_ok=True)
    article_AL, mixing_LD = _draw_articles(rows, seed)

    def passages(block: int) -> NDArray[np.float32]:
        """Return the passages of a block in latent coordinates."""
        rng = np.random.default_rng((seed, 1, block))
        shape = (min(BLOCK_ROWS, rows - block * BLOCK_ROWS), DIMENSION)
        own_BL = PASSAGE_SIZE * rng.standard_normal(shape, dtype=np.float32)
        return own_BL + article_AL[rng.integers(len(article_AL), size=len(own_BL))]

    blocks = math.ceil(rows / BLOCK_ROWS)
    out = np.lib.format.open_memmap(vectors_path, "w+", dtype, (rows, DIMENSION))

    with ProgressBar("generate", rows, "vectors") as meter:
        for block in range(blocks):
            vectors_BD = normalise_rows(passages(block) @ mixing_LD)
            out[block * BLOCK_ROWS : block * BLOCK_ROWS + len(vectors_BD)] = vectors_BD
            meter.advance(len(vectors_BD))

    out.flush()
    rng = np.random.default_rng((seed, 2))
    moved = []

    # Near passages of the file's blocks in turn
    for block in range(min(blocks, queries)):
        share = queries // min(blocks, queries) + (block < queries % min(blocks, queries))
        latent_BL = passages(block)
        chosen_QL = latent_BL[rng.integers(len(latent_BL), size=share)]
        moved.append(
            chosen_QL
            + QUERY_MOVE * PASSAGE_SIZE * rng.standard_normal(chosen_QL.shape, dtype=np.float32)
        )

    np.save(queries_path, normalise_rows(np.concatenate(moved) @ mixing_LD))
    return vectors_path, queries_path


def _draw_articles(rows: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the places of A articles in L latent coordinates, and the matrix that turns these into vectors."""
    rng = np.random.default_rng(seed)
    topics = max(round(TOPICS_PER_CELL * cells_of(rows)), 1)
    articles = max(rows // ARTICLE_PASSAGES, 1)
    topic_TL = rng.standard_normal((topics, DIMENSION), dtype=np.float32)
    article_AL = rng.standard_normal((articles, DIMENSION), dtype=np.float32)
    article_AL += topic_TL[rng.integers(topics, size=articles)]
    rotation_LD = np.linalg.qr(rng.standard_normal((DIMENSION, DIMENSION)))[0]
    sizes_L1 = np.sqrt(1 / np.arange(1, DIMENSION + 1))[:, None]
    return article_AL, (sizes_L1 * rotation_LD).astype(np.float32)
