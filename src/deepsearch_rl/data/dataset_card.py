"""The facts about the public data sets that can be read, from ``cards.yaml``: source, licence and a sample row."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, JsonValue, TypeAdapter

from deepsearch_rl.core.profile import read_values
from deepsearch_rl.core.records import NonEmpty, Record


class DatasetCard(Record):
    """One data set, which :mod:`.catalogue` reads."""

    holds: NonEmpty
    paper: NonEmpty
    repository: NonEmpty = Field(description="on the Hugging Face hub")
    revision: str | None = Field(
        description="commit that the readers were written for; null where none was seen, so that one must be chosen"
    )
    files: tuple[str, ...] = Field(
        description="paths in the repository that the readers read; empty where they were not seen there"
    )
    licence: NonEmpty
    sample: dict[str, JsonValue] = Field(
        description="a row in the form that the files have, shortened if it is long"
    )


# By name, the ``format`` in ``download.folder``
CARDS: Mapping[str, DatasetCard] = TypeAdapter(dict[str, DatasetCard]).validate_python(
    read_values(Path(__file__).with_name("cards.yaml"))
)
