"""The BM25 engines that params can name; the code of each is in `engines/bm25/`, in the folder of its name."""

from typing import Annotated, Literal

from pydantic import Field

from deepsearch_rl.core.records import Record
from deepsearch_rl.search.analysis import FieldName


class Bm25Config(Record):
    """Parameters of BM25F, which is BM25 with the one field ``contents``."""

    engine: Literal["builtin"]
    k1: float = Field(gt=0, description="how slowly repeated terms saturate")
    b: float = Field(
        ge=0, le=1, description="how strongly long fields are discounted; 0 is not at all"
    )
    fields: dict[FieldName, Annotated[float, Field(gt=0)]] = Field(
        min_length=1,
        description="what is searched (search/analysis.py), and how much a word there counts",
    )


class LuceneConfig(Record):
    """BM25 by Lucene (extra ``pyserini``)."""

    engine: Literal["lucene"]
    k1: float = Field(gt=0, description="how slowly repeated terms saturate")
    b: float = Field(
        ge=0, le=1, description="how strongly long chunks are discounted; 0 is not at all"
    )
    heap_mb: int = Field(
        ge=64, description="memory that Java may use, MiB; Lucene maps its files outside of it"
    )


AnyBm25Config = Annotated[Bm25Config | LuceneConfig, Field(discriminator="engine")]
