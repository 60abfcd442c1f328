"""Corpora and question sets: where they come from, the records they become, and how documents are cut into chunks."""
