"""Readers of documents and questions in the layouts that people have, and of their titles."""
