"""Chunks for tests of any package."""

from collections.abc import Iterable

from deepsearch_rl.core.records import Chunk, ChunkMetadata


def make_chunk(
    contents: str,
    name: str = "c",
    doc_id: str = "d",
    doc_chunks: int = 1,
    doc_chunk_id: int = 0,
    **metadata: str,
) -> Chunk:
    """A chunk with the id ``name``; ``metadata`` are further fields, such as its source."""
    where = {"doc_id": doc_id, "doc_chunks": doc_chunks, "doc_chunk_id": doc_chunk_id}
    return Chunk(
        id=name, contents=contents, metadata=ChunkMetadata.model_validate(where | metadata)
    )


def make_chunks(texts: Iterable[str]) -> list[Chunk]:
    """A chunk of every text; their ids differ."""
    return [make_chunk(text, f"c{row}") for row, text in enumerate(texts)]
