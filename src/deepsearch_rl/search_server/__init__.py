"""The retrieval server: every dialect of docs/contracts.md §1, from one process or several."""
