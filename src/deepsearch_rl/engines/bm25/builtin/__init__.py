"""The BM25 engine `builtin`: NumPy arrays in memory-mapped files."""
