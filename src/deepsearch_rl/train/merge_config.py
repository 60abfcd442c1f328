"""Params sections ``merge`` and ``unsloth_merge``; torch and PEFT, which do the work, take seconds to load."""

from typing import Literal, Self

from pydantic import Field, model_validator

from deepsearch_rl.core.hardware import Threads
from deepsearch_rl.core.records import Record
from deepsearch_rl.train.swift_names import SwiftModelType, SwiftTemplate

# The prompts of the proof
QUESTIONS = (
    "Who directed the film?",
    "In which city was the founder of the company born?",
    "Which country is the capital of the region in?",
    "Did the two people found the same company?",
    "When was the bridge over the river opened?",
    "Who is the spouse of the person who wrote the novel?",
    "Which of the two films came out first?",
    "What is the name of the company that made the engine?",
)


class MergeConfig(Record):
    """Both sections have all fields; those that its backend does not read may be null."""

    backend: Literal["swift", "peft", "unsloth"]
    device: Literal["cpu", "cuda"] = Field(description="where weights are added; never guessed")
    dtype: Literal["float32", "bfloat16"] = Field(
        description="of the base and of the merged weights"
    )
    threads: Threads = Field(description="on a cpu; null: as many as cores")
    model_type: SwiftModelType | None = Field(
        description="backend swift: ms-swift's name of the architecture, e.g. qwen3"
    )
    template: SwiftTemplate | None = Field(
        description="backend swift: ms-swift's name of the chat template, e.g. qwen3_nothinking"
    )
    max_sequence_tokens: int | None = Field(
        ge=1, description="backend unsloth: context that it prepares its model for"
    )
    prompts: int = Field(
        ge=1,
        le=len(QUESTIONS),
        description="fixed prompts that the unmerged model answers greedily",
    )
    max_tokens: int = Field(ge=1, description="longest of those answers")
    tolerance: float = Field(
        gt=0, description="mean difference of log-probabilities, nats, that rounding explains"
    )
    check_timeout_s: float = Field(
        gt=0, description="how long the merged model may take to load and answer"
    )

    @model_validator(mode="after")
    def _backend_has_its_fields(self) -> Self:
        if self.backend == "swift" and None in (self.model_type, self.template):
            raise ValueError("backend swift needs model_type and template")
        if self.backend == "unsloth" and self.max_sequence_tokens is None:
            raise ValueError("backend unsloth needs max_sequence_tokens")
        if self.backend == "unsloth" and self.device == "cpu":
            raise ValueError("backend unsloth runs on a GPU alone: set device: cuda")
        return self
