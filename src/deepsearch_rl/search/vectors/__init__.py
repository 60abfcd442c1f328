"""Vector indexes: exact search and FAISS."""
