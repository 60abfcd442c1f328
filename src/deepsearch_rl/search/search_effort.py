"""Which effort the searches of a FAISS file have: cells that are visited, vectors in view of a graph, or none."""

from pathlib import Path

import faiss

from deepsearch_rl.search.vectors.faiss_index import innermost, read_imported


def effort_of(path: Path) -> tuple[str, str | None]:
    """Return FAISS's name for the kind of an index, and the field of its effort; None where it has none.

    The field is ``nprobe`` or ``ef_search``, as ``FaissIndex`` searches. Raises as
    :func:`read_imported`.
    """
    index = innermost(read_imported(path))

    field = None
    if isinstance(index, faiss.IndexIVF):
        field = "nprobe"
    elif isinstance(index, faiss.IndexHNSW):
        field = "ef_search"
    return type(index).__name__, field
