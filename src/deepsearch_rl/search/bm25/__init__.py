"""BM25: the project's own engine, and Lucene through pyserini."""
