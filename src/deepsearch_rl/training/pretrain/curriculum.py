"""What the base model learns from: the curriculum's stages, and what all their documents share."""

from pydantic import Field

from deepsearch_rl.core.records import Record


class CurriculumStage(Record):
    """One stage of the curriculum; what the shares leave is demonstrations."""

    tokens: int = Field(ge=0, description="tokens trained on in this stage")
    hops: tuple[float, ...] = Field(description="shares of questions with 1, 2, ... hops")
    results: int = Field(
        ge=1, description="passages of a result; a given search has as many as it needs, at least"
    )
    facts: tuple[int, int] = Field(description="fewest and most facts of a passage")
    fillers: tuple[int, int] = Field(
        description="fewest and most sentences without a fact of a passage"
    )
    copy_share: float = Field(ge=0, le=1, description="share of the documents that repeat names")
    search_share: float = Field(
        ge=0, le=1, description="share that writes one search and nothing else"
    )
    continuation_share: float = Field(
        ge=0, le=1, description="share that writes searches after others"
    )
    given_share: float = Field(
        ge=0, le=1, description="share that answers from passages it did not ask for"
    )


class DocumentConfig(Record):
    """What all stages of the curriculum share."""

    in_domain: float = Field(
        ge=0, le=1, description="share of documents in the language of the in-domain world"
    )
    second_words: float = Field(
        ge=0, le=1, description="share of facts stated with the second word of their relation"
    )
    unanswerable: float = Field(
        ge=0, le=1, description="share of questions that no passage answers"
    )
    without_system: float = Field(
        ge=0, le=1, description="share of first calls and given searches without the tool"
    )
    tool_continuations: float = Field(
        ge=0, le=1, description="share of continuations with the tool"
    )
    inferences: float = Field(
        ge=0,
        le=1,
        description="share of questions that name two relations by one word, of those whose language has such words",
    )
    second_query: float = Field(
        ge=0, le=1, description="share of a continuation's searches that need a second one"
    )
