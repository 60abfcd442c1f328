"""Names of the parts of retrieval for params and commands; the modules with the parts take seconds to load."""

from typing import Literal

# The retrievers of an index; params may also name one of the user's own (core/own_code.py)
RetrieverName = Literal["bm25", "dense", "hybrid"]
# What an index is built of, each of which ranks alone too
IndexHalf = Literal["bm25", "dense"]
# The kinds of a vector index that can be built
VectorsKind = Literal["flat", "ivf_flat", "ivf_pq", "ivf_pq_refine", "hnsw"]
# Where the models of retrieval compute, and where vectors are searched
Device = Literal["cpu", "cuda"]
