"""Readers of corpora and question sets, documents, chunking, question writing and its audit."""
