"""How a corpus's vectors are searched: one config per kind of index.

docs/retrieval.md, "Vector indexes", compares the kinds. ``nprobe``, ``ef_search`` and
``refine_factor`` are read when an index is opened, so that they can change without a new build;
everything else is built in. All kinds compare by inner product, which for vectors of length one is
the cosine.

Codes of 4 bits are laid out for SIMD registers ("fast scan": Andre, Kermarrec and Le Scouarnec
2015) and scanned ten times as fast as codes of 8.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from deepsearch_rl.core.records import Record
from deepsearch_rl.search.names import Device

# What faiss-gpu can search: bytes of a code, bits of a sub-quantizer, and the most cells and hits
# of one search. search/vectors/gpu.py has the sources of these limits.
CODE_LENGTHS = (1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96)
GPU_BITS = 8
GPU_CANDIDATES = 2048


class FlatConfig(Record):
    """Exact inner products with every vector."""

    kind: Literal["flat"]


class IvfConfig(Record):
    """What every inverted file has."""

    nlist: int = Field(
        ge=1, description="number of cells; the square root of the rows, times 1 to 8, is usual"
    )
    nprobe: int = Field(ge=1, description="cells visited per query")
    train_rows: int = Field(
        ge=1, description="vectors that cells and codes are learnt from, drawn by seed"
    )
    device: Device = Field(description="where it is trained and filled; cuda needs faiss-gpu")
    search_device: Device = Field(
        description="where it is searched; on cuda, filtered searches stay on the CPU"
    )

    @property
    def on_gpu(self) -> bool:
        """Whether it is built or searched on a GPU."""
        return "cuda" in (self.device, self.search_device)

    @model_validator(mode="after")
    def _cells_fit_a_gpu(self) -> Self:
        if self.on_gpu and self.nprobe > GPU_CANDIDATES:
            raise ValueError(
                f"FAISS visits at most {GPU_CANDIDATES} cells on a GPU; lower nprobe, or set device: cpu"
            )

        return self


class PqConfig(IvfConfig):
    """What every inverted file of product-quantized vectors has."""

    m: int = Field(ge=1, description="sub-quantizers; divides the encoder's dimension")
    nbits: int = Field(
        ge=1,
        le=16,
        description="bits per sub-quantizer; 4 is scanned in registers, and held in memory",
    )

    @model_validator(mode="after")
    def _codes_fit_a_gpu(self) -> Self:
        if self.on_gpu and (self.nbits != GPU_BITS or self.m not in CODE_LENGTHS):
            raise ValueError(
                f"FAISS has no codes of {self.m} x {self.nbits} bits on a GPU; set nbits: "
                f"{GPU_BITS} and m to one of {', '.join(map(str, CODE_LENGTHS))}, or device and "
                "search_device to cpu (4 bits are quick there)"
            )

        return self


class IvfFlatConfig(IvfConfig):
    """Inverted cells with whole vectors."""

    kind: Literal["ivf_flat"]


class IvfPqConfig(PqConfig):
    """Inverted cells with product-quantized vectors (Jegou, Douze and Schmid 2011)."""

    kind: Literal["ivf_pq"]


class IvfPqRefineConfig(PqConfig):
    """``ivf_pq`` as a first stage; the exact inner product decides between its candidates."""

    kind: Literal["ivf_pq_refine"]
    refine_factor: float = Field(ge=1, description="candidates read from disk per wanted hit")


class HnswConfig(Record):
    """A navigable graph over whole vectors (Malkov and Yashunin 2016); one thread builds it, to be reproducible."""

    kind: Literal["hnsw"]
    links: int = Field(
        ge=2, description="neighbours per vector and layer; twice as many on the lowest layer"
    )
    ef_construction: int = Field(ge=1, description="vectors kept in view while one is linked")
    ef_search: int = Field(
        ge=1, description="vectors kept in view during a search; at least top_k are"
    )


class FaissConfig(Record):
    """A FAISS index of any kind that was built elsewhere; it is imported, never built."""

    kind: Literal["faiss"]
    nprobe: int | None = Field(ge=1, description="cells visited per query; null: as the file says")
    ef_search: int | None = Field(
        ge=1, description="vectors of a graph kept in view; null: as the file says"
    )


VectorsConfig = Annotated[
    FlatConfig | IvfFlatConfig | IvfPqConfig | IvfPqRefineConfig | HnswConfig | FaissConfig,
    Field(discriminator="kind"),
]
