"""Texts to vectors: what all encoders share. Each encoder has a folder in `engines/encoders/`."""
