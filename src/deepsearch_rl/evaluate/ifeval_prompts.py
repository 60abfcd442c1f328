"""IFEval (Zhou et al. 2023, arXiv 2311.07911): prompts whose instructions a program can check.

These are no questions with answers: the stage ifeval sends the prompts and applies the checkers.
``kwargs[i]`` are the arguments of ``instruction_id_list[i]``; some copies hold a null for every
argument of every other checker.
"""

from pydantic import Field, JsonValue, field_validator, model_validator

from deepsearch_rl.core.records import NonEmpty, Record


class IfevalRow(Record):
    """One prompt in the official form."""

    key: int
    prompt: NonEmpty
    instruction_id_list: tuple[NonEmpty, ...] = Field(min_length=1)
    kwargs: tuple[dict[str, JsonValue], ...]

    @field_validator("kwargs")
    @classmethod
    def _without_nulls(
        cls, kwargs: tuple[dict[str, JsonValue], ...]
    ) -> tuple[dict[str, JsonValue], ...]:
        result: list[dict[str, JsonValue]] = []
        for arguments in kwargs:
            result.append({name: value for name, value in arguments.items() if value is not None})

        return tuple(result)

    @model_validator(mode="after")
    def _paired(self) -> "IfevalRow":
        if len(self.kwargs) != len(self.instruction_id_list):
            raise ValueError("kwargs must hold one entry per instruction")
        return self
