"""The BM25 engine that a configuration names; the code of the other one is no dep of a stage and is not imported."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

from deepsearch_rl.core.records import Chunk
from deepsearch_rl.search.bm25.configs import AnyBm25Config, Bm25Config
from deepsearch_rl.search.ranking import Retriever


class Bm25Engine(Protocol):
    """A class of retrievers over files; both methods raise ArtifactError for damaged files or a full disk."""

    @classmethod
    def build(cls, chunks: Collection[Chunk], folder: Path, config: Any) -> Retriever:
        """Index chunks into ``folder``; raise ConfigError where no chunk holds a term."""
        ...

    @classmethod
    def open(cls, folder: Path, config: Any) -> Retriever:
        """Open what :meth:`build` wrote with the same configuration."""
        ...


def bm25_engine(config: AnyBm25Config) -> type[Bm25Engine]:
    """Return the engine of a configuration."""
    if isinstance(config, Bm25Config):
        from deepsearch_rl.search.bm25.bm25 import Bm25Index  # noqa: PLC0415

        return Bm25Index

    from deepsearch_rl.search.bm25.lucene import LuceneIndex  # noqa: PLC0415

    return LuceneIndex
