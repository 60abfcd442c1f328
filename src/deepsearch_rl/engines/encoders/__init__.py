"""Encoders; a folder has the name that `index.encoder.name` gives it."""
