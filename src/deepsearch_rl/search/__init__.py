"""Indexing, BM25, encoders, vectors, ranking, gold evidence and retrieval quality."""
