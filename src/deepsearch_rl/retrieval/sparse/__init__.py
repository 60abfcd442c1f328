"""Lexical retrieval: terms counted in an inverted index."""
