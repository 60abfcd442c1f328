"""Encoders of passages and queries."""
