"""The retrieval server: one process, every dialect of docs/contracts.md §1."""
