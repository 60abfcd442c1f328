"""Turn an endpoint's JSON into hits, so that an online search is served like an index.

What the :class:`FieldMap` names must be there: an empty list would look like a web without answers.
"""

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import JsonValue

from deepsearch_rl.core.daemon_threads import map_in_daemons
from deepsearch_rl.core.errors import ConfigError, EndpointDownError, EndpointError
from deepsearch_rl.core.records import Chunk, ChunkMetadata
from deepsearch_rl.core.redaction import read_key
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit, QueriesFailedError
from deepsearch_rl.server.online.endpoint import (
    ERROR_CHARS,
    ResultField,
    SearchEndpoint,
    SuspectedDownError,
    read_online_config,
)

MAX_ERROR_KEYS = 12
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "a truth value",
    int: "a number",
    float: "a number",
}


class OnlineSearcher:
    """Searches through an endpoint; safe to use from several threads, which share its limit of requests at once.

    Every query is asked once, whatever happens to the others: a request may cost money. Once the
    endpoint is down, the queries that were not asked yet fail with the same error. A query that
    fails alone does not say so: a second one must fail before any is answered.

    A result's id is its URL, or a digest of its contents. A hit's ``row`` is the result's place in
    the answer.
    """

    def __init__(self, endpoint: SearchEndpoint) -> None:
        self._endpoint = endpoint
        self.config = endpoint.config
        # One for each request that all searches may have at once
        self._turns = threading.Semaphore(self.config.max_concurrency)

    def find_hits(
        self, queries: Sequence[str], top_k: int, where: Filter | None = None
    ) -> list[list[Hit]]:
        """Return at most ``top_k`` >= 1 hits per query, best first; a blank query finds nothing, without a request.

        Raises:
            ConfigError: there is a filter, and an endpoint cannot be given one.
            EndpointError: the endpoint failed for the only query, or its answer is not as the
                config says.
            EndpointDownError: it is down, for every query.
            QueriesFailedError: it failed for some queries of several.
        """
        if where is not None and where != Filter():
            raise ConfigError(
                f"online search {self.config.name!r} takes no filters; put them into the query."
            )

        outages: list[EndpointDownError] = []
        suspicions: list[SuspectedDownError] = []
        answered: list[str] = []

        def outcome(query: str) -> list[Hit] | EndpointError:
            """Return the hits of a query, or why it has none; an outage ends the queries after it."""
            if not query.strip():
                return []
            try:
                with self._turns:
                    if outages:
                        return outages[0]
                    answer = self._endpoint.ask(query, min(top_k, self.config.max_results))
            except SuspectedDownError as error:
                suspicions.append(error)
                # One failure may be the query's own fault. A second one without any answer is the
                # endpoint's.
                if len(suspicions) > 1 and not answered:
                    outages.append(EndpointDownError(str(error)))
                return EndpointError(str(error))
            except EndpointDownError as error:
                outages.append(error)
                return error
            except EndpointError as error:
                return error

            answered.append(query)
            try:
                return self._hits(answer)[:top_k]
            except EndpointError as error:
                return error

        outcomes = map_in_daemons(outcome, queries, self.config.max_concurrency)
        return _hits_of_all(outcomes, outages)

    def _hits(self, answer: JsonValue) -> list[Hit]:
        """Return results of different contents, best score first; a URL's second passage has a digest for its id."""
        fields = self.config.fields
        for path, text in fields.expected.items():
            value = value_at(answer, path)
            if value != text:
                raise self._endpoint.error(f"{path!r} is not {text!r} but {_shown(value)}.")

        results = answer if fields.results is None else value_at(answer, fields.results)
        # Some engines answer with status 200 and say in the body that they failed
        failures = value_at(answer, fields.failures) if fields.failures else None
        if not results and failures:
            raise self._endpoint.error(
                f"no results, and {fields.failures!r} says why: {_shown(failures)}."
            )
        # Some leave the list out where nothing matches
        if results is None and fields.results_optional:
            return []
        if not isinstance(results, list):
            path = f"results path {fields.results!r}" if fields.results else "the answer itself"
            problem = "leads nowhere"
            if results is not None:
                problem = f"is no list but {_KINDS[type(results)]}"
            raise self._endpoint.error(f"{path} {problem}; the answer {_keys_of(answer)}.")

        by_contents: dict[str, Hit] = {}
        ids: set[str] = set()

        for row, result in enumerate(results):
            chunk = self._chunk(result, row)
            score = self._score(result, row)
            if chunk.contents in by_contents:
                continue
            if chunk.id in ids:
                chunk = chunk.model_copy(update={"id": _digest(chunk.contents)})
            ids.add(chunk.id)
            by_contents[chunk.contents] = Hit(row, score, chunk)

        return sorted(by_contents.values(), key=lambda hit: -hit.score)

    def _chunk(self, result: JsonValue, row: int) -> Chunk:
        url = self._text(result, row, "url")
        title = " ".join(self._text(result, row, "title").split()) or url
        contents = f"{title}\n{self._text(result, row, 'text')}"
        id_ = url or _digest(contents)

        metadata: dict[str, JsonValue] = {}
        for name, path in self.config.fields.metadata.items():
            value = value_at(result, path)
            if value is not None:
                metadata[name] = value

        # These win over fields of the answer that have their names.
        if url:
            metadata["url"] = url
        metadata |= {"doc_id": id_, "doc_chunks": 1, "doc_chunk_id": 0}
        return Chunk(id=id_, contents=contents, metadata=ChunkMetadata.model_validate(metadata))

    def _text(self, result: JsonValue, row: int, field: ResultField) -> str:
        value = self._field(result, row, field)
        # A text may be a list of excerpts
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return "\n".join(map(str, value))
        if value is not None and not isinstance(value, str):
            path = getattr(self.config.fields, field)
            raise self._endpoint.error(
                f"result {row}: {field} path {path!r} holds {_KINDS[type(value)]}, not text."
            )

        return value or ""

    def _score(self, result: JsonValue, row: int) -> float:
        value = self._field(result, row, "score")
        if value is None:
            # Without scores the order of the answer is all that is known
            return 1 / (row + 1)
        # In Python, true and false are integers
        if isinstance(value, bool) or not isinstance(value, int | float):
            path = self.config.fields.score
            kind = _KINDS[type(value)]
            raise self._endpoint.error(
                f"result {row}: score path {path!r} holds {kind}, no number."
            )

        return float(value)

    def _field(self, result: JsonValue, row: int, field: ResultField) -> JsonValue:
        path: str | None = getattr(self.config.fields, field)
        value = None if path is None else value_at(result, path)

        if value is None and path is not None and field not in self.config.fields.optional:
            raise self._endpoint.error(
                f"result {row} has nothing at {field} path {path!r}; it {_keys_of(result)}. Correct the path, or list "
                f"{field!r} under `optional`."
            )

        return value


def _hits_of_all(
    outcomes: Sequence[list[Hit] | EndpointError], outages: Sequence[EndpointDownError]
) -> list[list[Hit]]:
    """Return the hits of every query; raise as :meth:`OnlineSearcher.find_hits` where one of them failed."""
    failures: list[EndpointError] = []
    hits_Q: list[list[Hit]] = []
    for outcome in outcomes:
        if isinstance(outcome, EndpointError):
            failures.append(outcome)
        else:
            hits_Q.append(outcome)

    if not failures:
        return hits_Q
    if outages and not hits_Q:
        raise outages[0]
    if len(outcomes) == 1:
        raise failures[0]
    raise QueriesFailedError(outcomes)


def open_online(config_path: Path) -> OnlineSearcher:
    """Return the searcher that a YAML file describes, with its key; raise what reading file and key raises."""
    config = read_online_config(config_path)
    key = config.api_key_variable and read_key(config.api_key_variable, config.place)
    return OnlineSearcher(SearchEndpoint(config, key))


def value_at(value: JsonValue, path: str) -> JsonValue:
    """Return the value at a dotted path; None where there is none, or null."""
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None

    return value


def _digest(contents: str) -> str:
    """Return the id of a passage without a URL: 16 hex digits of the SHA-256 of its contents."""
    return hashlib.sha256(contents.encode()).hexdigest()[:16]


def _shown(value: JsonValue) -> str:
    return orjson.dumps(value).decode()[:ERROR_CHARS]


def _keys_of(value: JsonValue) -> str:
    if not isinstance(value, dict):
        return f"is {_KINDS[type(value)]}" if value is not None else "is null"
    return f"has {', '.join(map(repr, list(value)[:MAX_ERROR_KEYS])) or 'no keys'}"
