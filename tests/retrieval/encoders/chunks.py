"""Chunks of given texts."""

from collections.abc import Sequence

from deepsearch_rl.records import Chunk, ChunkMetadata


def make_chunks(texts: Sequence[str]) -> list[Chunk]:
    where = ChunkMetadata(doc_id="d", doc_chunks=1, doc_chunk_id=0)
    return [Chunk(id=f"c{row}", contents=text, metadata=where) for row, text in enumerate(texts)]
