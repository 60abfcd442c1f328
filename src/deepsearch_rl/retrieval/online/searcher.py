"""An endpoint's results as hits, so that whatever serves an index can serve an online search."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deepsearch_rl.errors import ConfigError
from deepsearch_rl.retrieval.online.config import OnlineConfig, read_key, read_online_config
from deepsearch_rl.retrieval.online.exchange import SearchEndpoint
from deepsearch_rl.retrieval.online.results import AnswerError, read_hits
from deepsearch_rl.retrieval.row_table import Filter
from deepsearch_rl.retrieval.searcher import Hit


class OnlineSearcher:
    """Searches through an endpoint; safe to use from several threads, which share its bound on requests at once.

    A result becomes a chunk: its id is the URL, or a digest of its contents where it has none. A hit's ``row`` is the
    result's place in the answer.
    """

    def __init__(self, endpoint: SearchEndpoint, config: OnlineConfig) -> None:
        self._endpoint, self._config = endpoint, config
        self._threads = ThreadPoolExecutor(config.max_concurrency, thread_name_prefix="online-search")

    def close(self) -> None:
        """Give up what has not been asked yet, and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._endpoint.close()

    def search(self, queries: Sequence[str], top_k: int, where: Filter | None = None) -> list[list[Hit]]:
        """For each query at most ``top_k`` hits, best first; a blank query finds nothing, without a request.

        Raises:
            ValueError: ``top_k`` is below 1.
            ConfigError: there is a filter, and an endpoint cannot be given one.
            EndpointError: the endpoint failed for one of the queries, or its answer is not as the config says.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k}")
        if where is not None and where != Filter():
            raise ConfigError(f"online search {self._config.name!r} takes no filters; put them into the query.")
        return list(self._threads.map(lambda query: self._search(query, top_k), queries))

    def _search(self, query: str, top_k: int) -> list[Hit]:
        if not query.strip():
            return []
        answer = self._endpoint.ask(query, min(top_k, self._config.max_results))
        try:
            return read_hits(answer, self._config.fields)[:top_k]
        except AnswerError as error:
            raise self._endpoint.error(str(error)) from error


def open_online(config_path: Path) -> OnlineSearcher:
    """The searcher that a YAML file describes, with its key from the environment.

    Raises:
        ArtifactError: the file cannot be read.
        ConfigError: it describes no endpoint, or its key is not set.
    """
    config = read_online_config(config_path)
    return OnlineSearcher(SearchEndpoint(config, read_key(config)), config)
