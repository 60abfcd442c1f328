"""Search engines of the web behind the same server.

Each provider is a function of an httpx client, a query and a number of results, which asks the
engine once and returns what it found; its keys and addresses are in the environment. A user's own is
such a function in a file, ``FILE.py:NAME`` (docs/retrieval.md). Retries, failures and secrets are
handled here for all of them: a function calls ``raise_for_status`` and reads the answer.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import Field, JsonValue

from deepsearch_rl.core.daemon_threads import map_in_daemons
from deepsearch_rl.core.errors import ConfigError, EndpointDownError, EndpointError, look_up
from deepsearch_rl.core.own_code import is_own, load_own
from deepsearch_rl.core.records import Chunk, ChunkMetadata, Record
from deepsearch_rl.core.redaction import environment_secrets, read_key, redact
from deepsearch_rl.core.retries import (
    NoCapacityError,
    is_out_of_money,
    no_capacity,
    retry,
    retry_after_s,
    wait_for_capacity,
)
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit, QueriesFailedError

_LOG = logging.getLogger(__name__)
TIMEOUT_S = 20.0
ATTEMPTS = 3
BACKOFF_S = 0.5

# The longest Retry-After of a failure, and how long a full quota is waited for
MAX_WAIT_S = 10.0
RATE_LIMIT_WAIT_S = 300.0
MAX_CONCURRENCY = 4
MAX_RESULTS = 20
ERROR_CHARS = 200
# The key is missing or wrong, or its budget is spent
REFUSED = (401, 402)


class WebPassage(Record):
    """A result of a search engine, in the engine's order."""

    title: str
    text: str
    url: str = ""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


Search = Callable[[httpx.Client, str, int], Sequence[WebPassage]]


# --- providers
# --------------------------------------------------------------------------------------------------------


def serpapi(client: httpx.Client, query: str, top_k: int) -> list[WebPassage]:
    """Google's results by SerpApi: https://serpapi.com/organic-results, https://serpapi.com/search-errors."""
    key = read_key("SERPAPI_API_KEY", "SerpApi")
    parameters = {"engine": "google", "q": query, "num": top_k, "api_key": key}
    response = client.get("https://serpapi.com/search.json", params=parameters)
    answer = response.raise_for_status().json()
    if answer["search_metadata"]["status"] != "Success":
        raise EndpointError(f"the search did not succeed: {answer.get('error')}")

    # A search without results is a success without the list
    passages: list[WebPassage] = []
    for result in answer.get("organic_results", []):
        metadata = _present(published_at=result.get("date"), source=result.get("source"))
        passages.append(_passage(result, "snippet", "link", metadata))
    return passages


def google(client: httpx.Client, query: str, top_k: int) -> list[WebPassage]:
    """Google's Programmable Search Engine: https://developers.google.com/custom-search/v1/using_rest."""
    parameters = {
        "key": read_key("GOOGLE_API_KEY", "Google"),
        "cx": read_key("GOOGLE_ENGINE_ID", "Google"),
        "q": query,
        "num": min(top_k, 10),
    }
    response = client.get("https://www.googleapis.com/customsearch/v1", params=parameters)
    answer = response.raise_for_status().json()
    # Without results there are no `items`
    return [_passage(result, "snippet", "link") for result in answer.get("items", [])]


def brave(client: httpx.Client, query: str, top_k: int) -> list[WebPassage]:
    """Brave's web search: https://api-dashboard.search.brave.com/app/documentation."""
    key = read_key("BRAVE_API_KEY", "Brave")
    response = client.get(
        "https://api.search.brave.com/res/v1/web/search",
        params={"q": query, "count": top_k},
        headers={"X-Subscription-Token": key},
    )
    answer = response.raise_for_status().json()

    # Without results there is no `web`
    passages: list[WebPassage] = []
    for result in answer.get("web", {}).get("results", []):
        metadata = _present(published_at=result.get("page_age"))
        passages.append(_passage(result, "description", "url", metadata))
    return passages


def searxng(client: httpx.Client, query: str, top_k: int) -> list[WebPassage]:
    """A SearXNG of your own, whose settings list ``json`` under ``search.formats``: https://docs.searxng.org/dev/search_api.html."""
    address = read_key("SEARXNG_URL", "SearXNG").rstrip("/")
    response = client.get(f"{address}/search", params={"q": query, "format": "json"})
    answer = response.raise_for_status().json()
    # Engines that refused or timed out: then no results is no answer
    if not answer["results"] and answer.get("unresponsive_engines"):
        raise EndpointError(f"no engine answered: {answer['unresponsive_engines']}")

    passages: list[WebPassage] = []
    for result in answer["results"][:top_k]:
        metadata = _present(published_at=result.get("publishedDate"), source=result.get("engine"))
        passages.append(_passage(result, "content", "url", metadata))
    return passages


def _passage(
    result: Mapping[str, Any], text: str, url: str, metadata: Mapping[str, JsonValue] | None = None
) -> WebPassage:
    return WebPassage(
        title=result["title"],
        text=result.get(text) or "",
        url=result[url],
        metadata=dict(metadata or {}),
    )


def _present(**values: JsonValue) -> dict[str, JsonValue]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Provider:
    """A search engine, and the environment variables that it needs."""

    search: Search
    variables: tuple[str, ...] = ()


PROVIDERS: Mapping[str, Provider] = {
    "serpapi": Provider(serpapi, ("SERPAPI_API_KEY",)),
    "google": Provider(google, ("GOOGLE_API_KEY", "GOOGLE_ENGINE_ID")),
    "brave": Provider(brave, ("BRAVE_API_KEY",)),
    "searxng": Provider(searxng, ("SEARXNG_URL",)),
}


# --- the searcher
# --------------------------------------------------------------------------------------------------------


def require_online(name: str) -> str:
    """Return the name of an online search, ours or FILE.py:NAME; raise UnknownNameError or ConfigError for others."""
    _provider(name)
    return name


def open_online(name: str) -> "OnlineSearcher":
    """Return the searcher of a provider; raise as :func:`require_online`, and ConfigError for a missing variable."""
    provider = _provider(name)
    for variable in provider.variables:
        read_key(variable, f"the online search {name}")
    return OnlineSearcher(name, provider.search)


def _provider(name: str) -> Provider:
    if is_own(name):
        return Provider(load_own("online search", name, ("client", "query", "top_k")).value)
    return look_up("online search", name, PROVIDERS)


class _TryAgainError(Exception):
    """An attempt failed in a way that may pass; ``wait_s`` is the server's Retry-After, if it sent one."""

    def __init__(self, reason: str, wait_s: float | None = None, *, is_down: bool = False) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.is_down = is_down


class OnlineSearcher:
    """Searches by a provider's function; safe to use from several threads.

    Every query is asked once, whatever happens to the others: a request may cost money. Once the
    engine is down, the queries that were not asked yet fail with the same error. A hit's score is
    1 / rank, its chunk's id the URL, or a digest of the contents.
    """

    max_results = MAX_RESULTS

    def __init__(
        self, name: str, search: Search, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._name = name
        self._search = search
        # Redirects are not followed: a key would travel along
        self._client = httpx.Client(timeout=TIMEOUT_S, transport=transport)
        # It would log URLs, and a key may be in one
        logging.getLogger("httpx").setLevel(logging.WARNING)

    def find_hits(
        self, queries: Sequence[str], top_k: int, where: Filter | None = None
    ) -> list[list[Hit]]:
        """Return at most ``top_k`` hits per query, in the engine's order; a blank query asks and finds nothing.

        Raises:
            ConfigError: there is a filter, which an engine cannot be given.
            EndpointError: the engine failed for the only query.
            EndpointDownError: it is down, for every query.
            QueriesFailedError: it failed for some queries of several.
        """
        if where is not None and where != Filter():
            raise ConfigError("an online search takes no filters; put them into the query.")
        outages: list[EndpointDownError] = []

        def outcome(query: str) -> list[Hit] | EndpointError:
            if not query.strip():
                return []
            if outages:
                return outages[0]
            try:
                return self._ask(query, min(top_k, MAX_RESULTS))[:top_k]
            except EndpointDownError as error:
                outages.append(error)
                return error
            except EndpointError as error:
                return error

        outcomes = map_in_daemons(outcome, queries, MAX_CONCURRENCY)
        failures = [each for each in outcomes if isinstance(each, EndpointError)]
        if outages and len(failures) == len(outcomes):
            raise outages[0]
        if failures and len(outcomes) > 1:
            raise QueriesFailedError(outcomes)
        if failures:
            raise failures[0]
        return [hits for hits in outcomes if not isinstance(hits, EndpointError)]

    def _ask(self, query: str, top_k: int) -> list[Hit]:
        def log(failure: BaseException, _attempt: int) -> None:
            _LOG.warning("%s", self._message(f"{failure} Trying again."))

        repeated = retry(ATTEMPTS, BACKOFF_S, _TryAgainError, log, max_wait_s=MAX_WAIT_S)
        # A full quota is waited for beyond the attempts: they are for failures
        patient = wait_for_capacity(RATE_LIMIT_WAIT_S, log)
        try:
            return _hits(patient(repeated(self._attempt))(query, top_k))
        except NoCapacityError as failure:
            problem = (
                f"{failure} It takes no more requests for longer than {RATE_LIMIT_WAIT_S:g} s."
            )
            raise EndpointDownError(self._message(problem)) from failure
        except _TryAgainError as failure:
            kind = EndpointDownError if failure.is_down else EndpointError
            raise kind(self._message(f"{failure} ({ATTEMPTS} attempts.)")) from failure

    def _attempt(self, query: str, top_k: int) -> Sequence[WebPassage]:
        try:
            return self._search(self._client, query, top_k)
        except httpx.HTTPStatusError as error:
            raise self._status_error(error.response) from error
        except httpx.TimeoutException as error:
            raise _TryAgainError(f"no answer within {TIMEOUT_S:g} s.") from error
        except httpx.TransportError as error:
            is_down = isinstance(error, httpx.ConnectError)
            reason = str(error) or type(error).__name__
            raise _TryAgainError(f"the connection failed ({reason}).", is_down=is_down) from error
        except ConfigError:
            raise
        except Exception as error:
            problem = str(error) if isinstance(error, EndpointError) else repr(error)
            message = self._message(f"its answer cannot be used: {problem}")
            raise EndpointError(message) from error

    def _status_error(self, response: httpx.Response) -> Exception:
        """Return the error for an answer that is no success."""
        status = response.status_code
        text = " ".join(response.text.split())[:ERROR_CHARS]
        problem = f"status {status}, {text!r}."

        if is_out_of_money(response.text):
            return EndpointDownError(self._message(f"{problem} Its quota or money is out."))
        if status == httpx.codes.TOO_MANY_REQUESTS:
            full = no_capacity(problem, response.headers, response.text)
            return full or EndpointDownError(self._message(f"{problem} Its quota is out."))
        if response.is_server_error:
            return _TryAgainError(problem, retry_after_s(response.headers))
        if status in REFUSED:
            return EndpointDownError(self._message(f"{problem} Is its key right?"))
        # With 403 a firewall may refuse this query alone
        return EndpointError(self._message(problem))

    def _message(self, problem: str) -> str:
        return redact(f"online search {self._name}: {problem}", environment_secrets(os.environ))


def _hits(passages: Sequence[WebPassage]) -> list[Hit]:
    """Return passages of different contents; a URL's second passage gets a digest for its id."""
    hits: dict[str, Hit] = {}
    ids: set[str] = set()

    for rank, passage in enumerate(passages, 1):
        title = " ".join(passage.title.split()) or passage.url
        # Half of a surrogate pair, where an engine cut a text in an emoji, is not UTF-8
        contents = f"{title}\n{passage.text}".encode(errors="replace").decode()
        if contents in hits:
            continue
        id_ = passage.url
        if not id_ or id_ in ids:
            id_ = hashlib.sha256(contents.encode()).hexdigest()[:16]
        ids.add(id_)

        metadata = dict(passage.metadata)
        if passage.url:
            metadata["url"] = passage.url
        metadata |= {"doc_id": id_, "doc_chunks": 1, "doc_chunk_id": 0}
        chunk = Chunk(id=id_, contents=contents, metadata=ChunkMetadata.model_validate(metadata))
        hits[contents] = Hit(rank - 1, 1 / rank, chunk)

    return list(hits.values())
