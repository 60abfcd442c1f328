"""Train a small language model to answer multi-hop questions by calling a search tool."""

__version__ = "0.1.0"
