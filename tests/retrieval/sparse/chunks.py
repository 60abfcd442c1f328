"""Chunks for tests of sparse retrieval."""

from collections.abc import Iterable

from deepsearch_rl.records import Chunk, ChunkMetadata


def make_chunk(contents: str, **metadata: str) -> Chunk:
    where = {"doc_id": "d", "doc_chunks": 1, "doc_chunk_id": 0}
    return Chunk(id="c", contents=contents, metadata=ChunkMetadata.model_validate(where | metadata))


def make_chunks(texts: Iterable[str]) -> list[Chunk]:
    return [make_chunk(text) for text in texts]
