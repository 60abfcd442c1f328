"""Corpora and question sets from hubs, files and the generated world."""
