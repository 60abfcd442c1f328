"""IFEval (Zhou et al. 2023, arXiv 2311.07911): prompts whose instructions a program can check.

No questions with answers: the stage ifeval asks the prompts and applies the checkers (``ifeval.prompts: real``, with
``ifeval.path`` naming the file). ``kwargs[i]`` are the arguments of the checker ``instruction_id_list[i]``; copies that
write a null for every argument of every other checker are read as if they had left them out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import Field, JsonValue, field_validator, model_validator

from deepsearch_rl.corpora.card import DatasetCard
from deepsearch_rl.corpora.lines import read_lines
from deepsearch_rl.files import parse_record
from deepsearch_rl.records import NonEmpty, Record

CARD = DatasetCard(
    name="ifeval",
    holds="541 prompts with instructions that a program can check",
    paper="Zhou et al. 2023, arXiv 2311.07911",
    repository="google/IFEval",
    revision="966cd89545d6b6acfd7638bc708b98261ca58e84",
    files=("ifeval_input_data.jsonl",),
    licence="Apache-2.0",
    sample={
        "key": 1001,
        "prompt": "Write about a river. Do not use any commas, and highlight at least 3 sections.",
        "instruction_id_list": ["punctuation:no_comma", "detectable_format:number_highlighted_sections"],
        "kwargs": [{}, {"num_highlights": 3}],
    },
)


class IfevalRow(Record):
    """One prompt in the official form."""

    key: int
    prompt: NonEmpty
    instruction_id_list: tuple[NonEmpty, ...] = Field(min_length=1)
    kwargs: tuple[dict[str, JsonValue], ...]

    @field_validator("kwargs")
    @classmethod
    def _without_nulls(cls, kwargs: tuple[dict[str, JsonValue], ...]) -> tuple[dict[str, JsonValue], ...]:
        return tuple({name: value for name, value in given.items() if value is not None} for given in kwargs)

    @model_validator(mode="after")
    def _paired(self) -> "IfevalRow":
        if len(self.kwargs) != len(self.instruction_id_list):
            raise ValueError("kwargs must hold one entry per instruction")
        return self


RowT = TypeVar("RowT", bound=IfevalRow)


def read_rows(path: Path, model: type[RowT]) -> Iterator[RowT]:
    """Yield the prompts of a JSON Lines file, plain or gzipped.

    Raises:
        ArtifactError: the file is missing or damaged.
        RecordError: a line does not fit; names file, line and field.
    """
    for number, line in read_lines(path):
        yield parse_record(model, line, path, number)
