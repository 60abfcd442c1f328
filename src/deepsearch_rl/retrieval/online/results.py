"""From an endpoint's JSON to hits, by the paths of a :class:`~deepsearch_rl.retrieval.online.config.FieldMap`.

What the map names must be there: a wrong map that quietly found nothing would look like a web without answers.
"""

import hashlib
from dataclasses import dataclass

from pydantic import JsonValue

from deepsearch_rl.records import Chunk, ChunkMetadata
from deepsearch_rl.retrieval.online.config import FieldMap, ResultField
from deepsearch_rl.retrieval.searcher import Hit

SHOWN_KEYS = 12


class AnswerError(Exception):
    """An answer is not as the field map says; the message names path and place."""


def read_hits(answer: JsonValue, fields: FieldMap) -> list[Hit]:
    """The distinct results of an answer, best score first, equal scores in the endpoint's order.

    Raises:
        AnswerError: the list of results, or a field of one that is not optional, is missing or of a wrong type.
    """
    hits = [_Result(result, row, fields).hit() for row, result in enumerate(_results(answer, fields))]
    return sorted(_distinct(hits), key=lambda hit: -hit.score)


def _results(answer: JsonValue, fields: FieldMap) -> list[JsonValue]:
    found = answer if fields.results is None else value_at(answer, fields.results)
    if found is None and fields.results_optional:
        return []
    if not isinstance(found, list):
        path = "the answer itself" if fields.results is None else f"results path {fields.results!r}"
        problem = "leads nowhere" if found is None else f"is no list but {_kind(found)}"
        raise AnswerError(f"{path} {problem}; the answer {_keys_of(answer)}.")
    return found


@dataclass(frozen=True, slots=True)
class _Result:
    """One entry of the list of results."""

    value: JsonValue
    row: int
    fields: FieldMap

    def hit(self) -> Hit:
        """The result as a search of an index would return it."""
        url = self._text("url", self.fields.url)
        title = " ".join(self._text("title", self.fields.title).split()) or url
        contents = f"{title}\n{self._text('text', self.fields.text)}"
        found = {name: value_at(self.value, path) for name, path in self.fields.metadata.items()}
        metadata: dict[str, JsonValue] = {name: value for name, value in found.items() if value is not None}
        if url:
            metadata["url"] = url
        return Hit(self.row, self._score(), _chunk(url or digest(contents), contents, metadata))

    def _text(self, field: ResultField, path: str | None) -> str:
        value = self._required(field, path)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return "\n".join(str(item) for item in value)
        if value is not None and not isinstance(value, str):
            raise AnswerError(f"result {self.row}: {field} path {path!r} holds {_kind(value)}, not text.")
        return value or ""

    def _score(self) -> float:
        value = self._required("score", self.fields.score)
        if value is None:
            return 1 / (self.row + 1)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise AnswerError(f"result {self.row}: score path {self.fields.score!r} holds {_kind(value)}, no number.")
        return float(value)

    def _required(self, field: ResultField, path: str | None) -> JsonValue:
        value = None if path is None else value_at(self.value, path)
        if value is None and path is not None and field not in self.fields.optional:
            raise AnswerError(
                f"result {self.row} has nothing at {field} path {path!r}; it {_keys_of(self.value)}. "
                f"Correct the path, or list {field!r} under `optional`."
            )
        return value


def _chunk(id_: str, contents: str, metadata: dict[str, JsonValue]) -> Chunk:
    where: dict[str, JsonValue] = {"doc_id": id_, "doc_chunks": 1, "doc_chunk_id": 0}
    return Chunk(id=id_, contents=contents, metadata=ChunkMetadata.model_validate(metadata | where))


def _distinct(hits: list[Hit]) -> list[Hit]:
    """Without repetitions; a second passage of the same URL gets a digest for its id."""
    contents: set[str] = set()
    ids: set[str] = set()
    kept: list[Hit] = []
    for hit in hits:
        chunk = hit.chunk
        if chunk.contents in contents:
            continue
        if chunk.id in ids:
            chunk = chunk.model_copy(update={"id": digest(chunk.contents)})
        contents.add(chunk.contents)
        ids.add(chunk.id)
        kept.append(Hit(hit.row, hit.score, chunk))
    return kept


def value_at(value: JsonValue, path: str) -> JsonValue:
    """What stands at a dotted path; None where nothing does, or null."""
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def digest(contents: str) -> str:
    """The id of a passage that has none: 16 hex digits of the SHA-256 of its contents."""
    return hashlib.sha256(contents.encode()).hexdigest()[:16]


def _kind(value: JsonValue) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", int: "a number", float: "a number"}
    return names[type(value)]


def _keys_of(value: JsonValue) -> str:
    if not isinstance(value, dict):
        return f"is {_kind(value)}" if value is not None else "is null"
    return f"has {', '.join(map(repr, list(value)[:SHOWN_KEYS])) or 'no keys'}"
