"""Open what a server searches: an index or an online search, reranked or not."""

from dataclasses import dataclass

from deepsearch_rl.retrieval.online.searcher import open_online
from deepsearch_rl.retrieval.rerank import CrossEncoder, RerankedSearcher
from deepsearch_rl.retrieval.row_table import UNKNOWN_DAY
from deepsearch_rl.retrieval.searcher import SearchesChunks, open_index
from deepsearch_rl.retrieval.server.config import ServerConfig


@dataclass(frozen=True, slots=True)
class SearchEngine:
    """A searcher, and what a server must know of it."""

    searcher: SearchesChunks
    passages: int
    """No search finds more."""
    takes_filters: bool
    """Whether its passages name sources or days."""


def open_engine(config: ServerConfig) -> SearchEngine:
    """Open what a server searches, ready for the first query.

    Raises:
        ArtifactError: the index is missing, incomplete or of other chunks; or the reranker's folder holds none that
            can be used.
        ConfigError: the file of the online search describes none, or its key is not set; or the reranker cannot read
            ``max_tokens`` tokens.
    """
    if config.online:
        online = open_online(config.online)
        engine = SearchEngine(online, online.config.max_results, takes_filters=False)
    else:
        engine = _open_index(config)
    if config.reranker is None:
        return engine
    reranker = CrossEncoder(config.reranker)
    reranker.warm_up()
    reranked = RerankedSearcher(engine.searcher, reranker, config.reranker.depth)
    return SearchEngine(reranked, engine.passages, engine.takes_filters)


def _open_index(config: ServerConfig) -> SearchEngine:
    assert config.index is not None
    searcher = open_index(config.index, config.chunks, config.service.retriever)
    searcher.search(["warm up"], config.service.top_k)
    filters = bool(searcher.rows.sources) or bool((searcher.rows.day_N != UNKNOWN_DAY).any())
    return SearchEngine(searcher, len(searcher.chunks), filters)
