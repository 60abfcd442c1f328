"""The records that cross file and process boundaries, one pydantic model each (docs/contracts.md lists the fields).

All are frozen and refuse unknown fields; only ``metadata`` is open.

In every reader an absent key, ``null``, ``NaN`` and ``""`` are the same missing value, and a number,
list or object in place of text is an error (:data:`Text` and the types below it).
"""

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    RootModel,
)
from pydantic_core import PydanticCustomError


def is_missing(value: object) -> bool:
    """Return whether a value of a foreign row is null, NaN or the empty text."""
    return value is None or value == "" or (isinstance(value, float) and value != value)


def _empty_where_missing(value: object) -> object:
    return "" if is_missing(value) else value


def _none_where_missing(value: object) -> object:
    return None if is_missing(value) else value


def _name_as_text(value: object) -> object:
    # Some sets number their rows
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _empty_where_missing(value)


def _require_text(text: str) -> str:
    if not text:
        raise PydanticCustomError(
            "missing_text", "the text is missing (null, NaN and an empty text count as missing)"
        )

    return text


NonEmpty = Annotated[str, Field(min_length=1)]
# Text of a foreign row, empty if missing; give the field the default ``""``
Text = Annotated[str, BeforeValidator(_empty_where_missing)]
# Text that a foreign row must have
RequiredText = Annotated[str, BeforeValidator(_empty_where_missing), AfterValidator(_require_text)]
# Text, None if missing
OptionalText = Annotated[str | None, BeforeValidator(_none_where_missing)]
# An id in a foreign row; a whole number becomes text
RowName = Annotated[str, BeforeValidator(_name_as_text), AfterValidator(_require_text)]
# Such an id, None if missing
OptionalRowName = Annotated[
    str | None, BeforeValidator(_none_where_missing), BeforeValidator(_name_as_text)
]

# Titles have at most 255 bytes in Wikipedia, and a few more in news
MAX_TITLE_BYTES = 300
ScoreT = TypeVar("ScoreT")


class Record(BaseModel):
    """A frozen model that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OpenRecord(BaseModel):
    """A frozen model that keeps fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="allow")


class ForeignRecord(BaseModel):
    """A frozen model of what another program wrote, which ignores fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def with_title_line(contents: str) -> str:
    """Return contents with a title line: an empty one is added if the first line is too long for a title."""
    beginning = contents[: MAX_TITLE_BYTES + 1]
    first_line, _, _ = beginning.partition("\n")
    is_title = len(first_line.encode("utf-8", "surrogatepass")) <= MAX_TITLE_BYTES
    return contents if is_title else f"\n{contents}"


def _require_words(contents: str) -> str:
    if not contents or contents.isspace():
        raise PydanticCustomError(
            "blank_contents", "there is neither a title nor a text; remove the document"
        )

    return contents


class _Titled(Record):
    id: NonEmpty
    contents: Annotated[str, AfterValidator(_require_words), AfterValidator(with_title_line)] = (
        Field(
            description="title, newline and text; the title is empty if the first line is too long for one"
        )
    )

    @property
    def title(self) -> str:
        """The first line of ``contents``, unchanged (wiki-18 titles keep their quotes)."""
        return self.contents.partition("\n")[0]

    @property
    def text(self) -> str:
        """Everything after the first line of ``contents``."""
        return self.contents.partition("\n")[2]


class Document(_Titled):
    """One article of a corpus."""

    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class ChunkMetadata(OpenRecord):
    """Where a chunk comes from, and its document's metadata.

    Keys of the document that collide with these fields move below ``document_metadata``.
    """

    doc_id: NonEmpty
    doc_chunks: int = Field(ge=1, description="number of chunks of the document")
    doc_chunk_id: int = Field(ge=0, description="position of this chunk in its document, from 0")

    @classmethod
    def of(cls, document: Document, doc_chunks: int, doc_chunk_id: int) -> "ChunkMetadata":
        """Return the metadata of one of a document's chunks."""
        metadata = dict(document.metadata)
        moved: dict[str, JsonValue] = {}
        for name in CHUNK_KEYS:
            if name in metadata:
                moved[name] = metadata.pop(name)

        if moved:
            metadata[DOCUMENT_METADATA] = moved
        place = {"doc_id": document.id, "doc_chunks": doc_chunks, "doc_chunk_id": doc_chunk_id}
        return cls.model_validate({**metadata, **place})


DOCUMENT_METADATA = "document_metadata"
# Keys reserved in the metadata of a chunk
CHUNK_KEYS = (*ChunkMetadata.model_fields, DOCUMENT_METADATA)


class Chunk(_Titled):
    """A retrievable passage below the title of its document."""

    metadata: ChunkMetadata


class Evidence(OpenRecord):
    """A gold fact: a string in one document of the corpus."""

    fact: RequiredText
    doc_id: OptionalRowName = None
    title: OptionalText = None


class GoldStep(Record):
    """One step of a question's gold reasoning."""

    question: NonEmpty = Field(
        description='in words, or "subject >> relation"; #1 stands for the answer of the first step'
    )
    answer: OptionalText = None
    title: OptionalText = Field(default=None, description="of the document that answers it")


class QuestionMetadata(OpenRecord):
    """Details of a question. ``evidence_list`` is None if the gold evidence is unknown."""

    question_type: Text = ""
    evidence_list: tuple[Evidence, ...] | None = None
    supporting_doc_ids: tuple[RowName, ...] | None = Field(
        default=None, description="ids of the gold documents"
    )
    supporting_titles: tuple[RequiredText, ...] | None = Field(
        default=None, description="titles of gold documents"
    )
    gold_steps: tuple[GoldStep, ...] | None = Field(
        default=None, description="from the question to its answer, in the order of reasoning"
    )


class Question(Record):
    """A question with every acceptable answer."""

    id: NonEmpty
    question: NonEmpty
    golden_answers: Annotated[tuple[str, ...], Field(min_length=1)]
    metadata: QuestionMetadata = Field(default_factory=QuestionMetadata)


# Native tool calls, or Search-R1's tags (docs/contracts.md, section 4)
ProtocolName = Literal["function_calling", "search_tags"]


class StopReason(StrEnum):
    """Why a rollout ended; docs/contracts.md, section 4, explains each, and :data:`SERVER_FAILURES` sorts them."""

    ANSWERED = "answered"
    NO_ANSWER_TAG = "no_answer_tag"
    SEARCH_BUDGET = "search_budget"
    TURN_BUDGET = "turn_budget"
    TOKEN_BUDGET = "token_budget"
    DEADLINE = "deadline"
    TOOL_CALL_UNPARSABLE = "tool_call_unparsable"
    TOOL_ERROR = "tool_error"
    MODEL_ERROR = "model_error"


# Failures of a server; all other stop reasons are the model's doing. Training and the choice of a
# checkpoint leave such rollouts out. Evaluation scores them 0, and a repeated command retries only
# these, so that repetition cannot raise a score.
SERVER_FAILURES = frozenset({StopReason.MODEL_ERROR, StopReason.TOOL_ERROR})


def json_object(text: str) -> dict[str, JsonValue] | None:
    """Return the object that a text of JSON holds; None if it holds anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None

    return value if isinstance(value, dict) else None


# JSON text of fields that only the server understands and wants back with the conversation, such as
# thought signatures; no file holds them
ProviderFields = Annotated[str, Field(exclude=True, repr=False)]


class ToolCall(Record):
    """A call of a model. ``arguments`` is JSON text, spaced as by `json.dumps`; other text stays unchanged."""

    id: str
    name: str
    arguments: str
    provider_fields: ProviderFields = ""

    @property
    def parsed(self) -> dict[str, JsonValue] | None:
        """The arguments as an object; None if they are anything else."""
        return json_object(self.arguments)


class Message(Record):
    """One message of a conversation in the Chat Completions sense."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    provider_fields: ProviderFields = ""


class Retrieval(Record):
    """One executed search: the query and the ids of the chunks that the model saw, best first."""

    query: str
    chunk_ids: tuple[str, ...]


class TokenUsage(Record):
    """Tokens of one model call, as the endpoint counted them."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)


# The prompt of trajectories that another system made, whose results do not name theirs
UNKNOWN_PROMPT = "unknown"


class Trajectory(Record):
    """One finished rollout; scores are derived from it, never stored.

    ``id`` is ``<question id>#<sample>``. ``answer`` is the extracted answer, or empty. ``usage`` has
    an entry per model call whose tokens the endpoint counted.
    """

    schema_version: Literal[2] = 2
    id: NonEmpty
    question_id: NonEmpty
    sample: int = Field(ge=0)
    question: NonEmpty
    golden_answers: tuple[str, ...]
    question_type: str = ""
    model: NonEmpty
    prompt: NonEmpty
    protocol: ProtocolName = "function_calling"
    temperature: float
    messages: tuple[Message, ...]
    retrievals: tuple[Retrieval, ...] = ()
    answer: str = ""
    stop_reason: StopReason
    error: str | None = None
    usage: tuple[TokenUsage, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all model calls."""
        return sum(call.prompt_tokens for call in self.usage)

    @property
    def completion_tokens(self) -> int:
        """Completion tokens of all model calls."""
        return sum(call.completion_tokens for call in self.usage)

    @property
    def rounds(self) -> int:
        """Number of assistant turns."""
        return len(self.turns)

    @property
    def turns(self) -> list[Message]:
        """The model's messages."""
        return [message for message in self.messages if message.role == "assistant"]

    @property
    def tool_texts(self) -> list[str]:
        """The tool results."""
        return [message.content for message in self.messages if message.role == "tool"]

    @property
    def tool_calls(self) -> int:
        """Number of tool calls."""
        return sum(len(message.tool_calls) for message in self.messages)

    @property
    def failed(self) -> bool:
        """Whether the rollout ended in anything but an answer."""
        return self.stop_reason is not StopReason.ANSWERED

    def score(self, metric: "Callable[[Trajectory], ScoreT]", zero: ScoreT) -> ScoreT:
        """Return ``metric`` of this rollout, or ``zero`` if it failed."""
        return zero if self.failed else metric(self)


class RetrievalReport(
    RootModel[dict[str, dict[str, dict[str, Annotated[int | float, Field(ge=0)]]]]]
):
    """``retrieval.json``: scores in [0, 1], and the number of questions ``n``, by dataset and retriever."""

    model_config = ConfigDict(frozen=True)


class TokenCounts(Record):
    """Lengths of training rows in tokens."""

    mean: float = Field(gt=0)
    max: int = Field(ge=1)


class FilterReport(Record):
    """``filter.json``: what became of the teacher's trajectories."""

    trajectories: int = Field(ge=1)
    f1: float = Field(ge=0, le=1, description="of all of them")
    dropped: dict[str, int] = Field(
        description="how many each predicate dropped, and how many rows were too long"
    )
    rows: int = Field(ge=1, description="rows that are trained on")
    rows_by_type: dict[str, int]
    searches: float = Field(ge=0, description="executed searches per trajectory that is trained on")
    tokens: TokenCounts
