"""Settings of a retrieval server, for the command line and for stages."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.files import file_digests, sha256_file, sha256_json
from deepsearch_rl.core.own_code import is_own, own_path
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.search.own_retriever import require_retriever
from deepsearch_rl.server.online import require_online
from deepsearch_rl.server.rerank import RerankerConfig

KnownRetriever = Annotated[str, AfterValidator(require_retriever)]
KnownOnline = Annotated[str, AfterValidator(require_online)]


class RetrievalConfig(Record):
    """Section ``retrieval``: how passages are found wherever a model searches."""

    retriever: KnownRetriever = Field(description="bm25, dense, hybrid, or your own")
    dataset_retrievers: dict[str, KnownRetriever] = Field(
        description="in place of ``retriever``, by question set"
    )
    top_k: int = Field(ge=1, description="passages per search where a request does not say")
    window_ms: float = Field(ge=0, description="how long a search waits for others to share it")
    max_batch: int = Field(ge=1, description="queries that share a search at most")
    cache_entries: int = Field(ge=0, description="answers kept for repeated queries")
    pages: Path | None = Field(
        description="JSON Lines of {url, contents} for /access; null where there are none"
    )
    reranker: RerankerConfig | None = Field(
        description="a cross-encoder behind the retriever; null for none"
    )
    online: KnownOnline | None = Field(
        description="search engine of the web, or FILE.py:NAME, searched instead of the index"
    )
    startup_timeout_s: float = Field(gt=0, description="for opening the index")
    search_timeout_s: float = Field(
        default=120.0,
        gt=0,
        description="for one search of a server; its queries are answered 503 then",
    )

    def for_dataset(self, name: str, datasets: Collection[str]) -> "RetrievalConfig":
        """Return the settings that one of the question sets is answered with: its own retriever, where it has one.

        Raise UnknownNameError if ``dataset_retrievers`` names a set that is not in ``datasets``.
        """
        for dataset in self.dataset_retrievers:
            look_up("dataset in retrieval.dataset_retrievers", dataset, dict.fromkeys(datasets))
        retriever = self.dataset_retrievers.get(name, self.retriever)
        return self.model_copy(update={"retriever": retriever, "dataset_retrievers": {}})

    def search_fingerprint(self) -> str:
        """Return the SHA-256 of the settings that change what a search finds, and of the files they name."""
        reranker = self.reranker and [
            self.reranker.model_dump(mode="json"),
            file_digests(self.reranker.model),
        ]
        own: list[str] = []
        for name in (self.retriever, self.online):
            if name and is_own(name):
                own.append(sha256_file(own_path(name)))
        return sha256_json([self.retriever, self.top_k, self.online, reranker, *own])


class ServerConfig(Record):
    """One server process: its index, its address, its clients."""

    retrieval: RetrievalConfig
    index: Path | None = Field(
        description="index folder of a corpus; not opened where an online search is configured"
    )
    chunks: Path | None = Field(
        description="the chunk file; null takes the one that the index names"
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads of an encoder with weights; null: those of the index, or one for each core",
    )
    host: NonEmpty
    port: int = Field(ge=0, le=65535, description="0 takes a free one")
    public: bool = Field(description="whether an address that is not loopback may be listened on")
    token_variable: NonEmpty | None = Field(
        description="environment variable with the token that clients must send"
    )
    no_token: bool = Field(
        default=False, description="whether a public address may be asked without a token"
    )
