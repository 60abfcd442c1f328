"""The BM25 engine `lucene`: Lucene, through pyserini."""
