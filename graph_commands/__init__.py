"""Subcommands of `deepsearch` that read the graph through DVC, which the library does not import."""
