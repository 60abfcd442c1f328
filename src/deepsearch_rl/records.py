"""The records that cross file and process boundaries, one pydantic model each (docs/contracts.md lists the fields).

All are frozen and refuse unknown fields; ``metadata`` is the one open place, for what a corpus or a question set
carries beyond the common fields.
"""

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel

NonEmpty = Annotated[str, Field(min_length=1)]
ScoreT = TypeVar("ScoreT")


class Record(BaseModel):
    """A frozen model that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OpenRecord(BaseModel):
    """A frozen model that keeps fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="allow")


class ForeignRecord(BaseModel):
    """A frozen model of what another program wrote; fields that it does not know are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Titled(Record):
    id: NonEmpty
    contents: NonEmpty = Field(description="the title, a newline and the text")

    @property
    def title(self) -> str:
        """The first line of ``contents``, as it stands (wiki-18 titles keep their quotes)."""
        return self.contents.partition("\n")[0]

    @property
    def text(self) -> str:
        """Everything after the first line of ``contents``."""
        return self.contents.partition("\n")[2]


class Document(_Titled):
    """One article of a corpus."""

    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class ChunkMetadata(OpenRecord):
    """Where a chunk comes from, plus whatever its document's metadata holds."""

    doc_id: NonEmpty
    doc_chunks: int = Field(ge=1, description="number of chunks of the document")
    doc_chunk_id: int = Field(ge=0, description="position of this chunk in its document, from 0")


class Chunk(_Titled):
    """A retrievable passage below the title of its document."""

    metadata: ChunkMetadata


class Evidence(OpenRecord):
    """A gold fact: a string found in one document of the corpus. Unknown keys of a source are kept."""

    fact: NonEmpty
    doc_id: str | None = None
    title: str | None = None


class QuestionMetadata(OpenRecord):
    """What is known about a question. ``evidence_list`` is None where the gold evidence is not known."""

    question_type: str = ""
    evidence_list: tuple[Evidence, ...] | None = None


class Question(Record):
    """A question with every acceptable answer."""

    id: NonEmpty
    question: NonEmpty
    golden_answers: Annotated[tuple[str, ...], Field(min_length=1)]
    metadata: QuestionMetadata = Field(default_factory=QuestionMetadata)


ProtocolName = Literal["function_calling", "search_tags"]
"""How a model asks for searches: native tool calls, or Search-R1's tags in its text (docs/contracts.md, section 4)."""
RetrieverName = Literal["bm25", "dense", "hybrid"]
ServingBackend = Literal["cpu", "vllm"]
IndexHalf = Literal["bm25", "dense"]
VectorsKind = Literal["flat", "ivf_flat", "ivf_pq", "ivf_pq_refine", "hnsw"]
Device = Literal["cpu", "cuda"]


class StopReason(StrEnum):
    """Why a rollout ended; docs/contracts.md, section 4, explains each."""

    ANSWERED = "answered"
    NO_ANSWER_TAG = "no_answer_tag"
    SEARCH_BUDGET = "search_budget"
    TURN_BUDGET = "turn_budget"
    TOKEN_BUDGET = "token_budget"
    DEADLINE = "deadline"
    TOOL_CALL_UNPARSABLE = "tool_call_unparsable"
    TOOL_ERROR = "tool_error"
    MODEL_ERROR = "model_error"


class ToolCall(Record):
    """A call of a model. ``arguments`` is JSON text, spaced as `json.dumps` does; what is no JSON stays as written."""

    id: str
    name: str
    arguments: str

    @property
    def parsed(self) -> dict[str, JsonValue] | None:
        """The arguments as an object; None where they are anything else."""
        try:
            arguments = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        return arguments if isinstance(arguments, dict) else None


class Message(Record):
    """One message of a conversation in the Chat Completions sense."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Retrieval(Record):
    """One executed search: the query and the ids of the chunks that the model was shown, best first."""

    query: str
    chunk_ids: tuple[str, ...]


class TokenUsage(Record):
    """Tokens of one model call, as the endpoint counted them."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)


class Trajectory(Record):
    """One finished rollout. Scores are derived from it, never stored in it.

    ``id`` is ``<question id>#<sample>``. ``answer`` is the extracted answer, empty where there is none.
    ``usage`` has an entry per model call whose tokens the endpoint counted.
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
        """Prompt tokens of all model calls together."""
        return sum(call.prompt_tokens for call in self.usage)

    @property
    def completion_tokens(self) -> int:
        """Completion tokens of all model calls together."""
        return sum(call.completion_tokens for call in self.usage)

    @property
    def rounds(self) -> int:
        """Number of assistant turns."""
        return sum(message.role == "assistant" for message in self.messages)

    @property
    def tool_calls(self) -> int:
        """Number of tool calls that the model wrote."""
        return sum(len(message.tool_calls) for message in self.messages)

    @property
    def failed(self) -> bool:
        """Whether the rollout ended in anything but an answer."""
        return self.stop_reason is not StopReason.ANSWERED

    def score(self, metric: "Callable[[Trajectory], ScoreT]", zero: ScoreT) -> ScoreT:
        """Return ``metric`` of this rollout, or ``zero`` if it failed: a failed rollout scores 0 in everything."""
        return zero if self.failed else metric(self)


class RetrievalReport(RootModel[dict[str, dict[str, dict[str, Annotated[int | float, Field(ge=0)]]]]]):
    """``retrieval.json``: scores in [0, 1], and the number of questions ``n``, by dataset and retriever."""

    model_config = ConfigDict(frozen=True)


class TokenCounts(Record):
    """Lengths of training rows in tokens."""

    mean: float = Field(gt=0)
    max: int = Field(ge=1)


class FilterReport(Record):
    """``filter.json``: what became of the teacher's trajectories, in the order of the filter's work."""

    trajectories: int = Field(ge=1)
    f1: float = Field(ge=0, le=1, description="of all of them")
    dropped: dict[str, int] = Field(description="how many each predicate dropped, and how many rows were too long")
    rows: int = Field(ge=1, description="rows that are trained on")
    rows_by_type: dict[str, int]
    searches: float = Field(ge=0, description="executed searches per trajectory that is trained on")
    tokens: TokenCounts
