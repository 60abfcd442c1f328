"""BM25 engines; a folder has the name that `index.bm25.engine` gives it."""
