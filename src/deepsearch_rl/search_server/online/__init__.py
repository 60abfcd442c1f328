"""Searching the web, or anything else behind a JSON endpoint, in place of an index."""
