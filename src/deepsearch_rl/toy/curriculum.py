"""What the base model learns from: the curriculum's stages, and what all their documents share."""

import math
from typing import Self

from pydantic import Field, model_validator

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
    lookup_share: float = Field(
        ge=0, le=1, description="share that looks up one fact of a text after another"
    )
    search_share: float = Field(
        ge=0, le=1, description="share that writes one search and nothing else"
    )
    continuation_share: float = Field(
        ge=0, le=1, description="share that writes searches after others"
    )
    given_share: float = Field(
        ge=0, le=1, description="share that answers from passages it did not ask for"
    )

    @property
    def demonstration_share(self) -> float:
        """What the other shares leave; not below 0, which they may miss by the last bit."""
        return max(0.0, 1 - self._shares())

    def _shares(self) -> float:
        return math.fsum(
            (
                self.copy_share,
                self.lookup_share,
                self.search_share,
                self.continuation_share,
                self.given_share,
            )
        )

    @model_validator(mode="after")
    def _require_shares_below_one(self) -> Self:
        if self._shares() > 1 + 1e-9:
            raise ValueError(
                f"the shares of a curriculum stage add up to {self._shares():g}, which is over 1"
            )
        return self


class DocumentConfig(Record):
    """What all stages of the curriculum share."""

    in_domain: float = Field(
        ge=0, le=1, description="share of documents in the language of the in-domain world"
    )
    second_words: float = Field(
        ge=0, le=1, description="share of facts stated with the second word of their relation"
    )
    unanswerable: float = Field(
        ge=0,
        le=1,
        description="share of questions, and of second searches, that no passage answers",
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
