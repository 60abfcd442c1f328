"""Indexing, BM25, encoders, vectors, ranking, gold evidence and retrieval quality.

An index folder (:mod:`.build`, :mod:`.manifest`) holds the rows of a chunk file (:mod:`.rows`) and two halves:

    bm25    :mod:`.bm25.builtin` or :mod:`.bm25.lucene`
    dense   an encoder (:mod:`.encoders`), whose vectors (:mod:`.encoding`) are searched exactly
            (:mod:`.flat_index`) or by FAISS (:mod:`.faiss_index`)

Each engine's module has its config, whose methods build and open it, and its class. :mod:`.searcher`
opens an index and searches it with one half or with the hybrid of both.
"""

from typing import Literal

# Here, because commands need these names before anything heavy is imported.
# The retrievers of an index; params may also name one of the user's own (core/own_code.py)
RetrieverName = Literal["bm25", "dense", "hybrid"]
# What an index is built of; each half ranks alone too
IndexHalf = Literal["bm25", "dense"]
Device = Literal["cpu", "cuda"]
