"""The texts of a chunk that can be searched and weighted apart from each other.

    contents   title and body, as the chunk file holds them
    title      the first line of the contents
    body       everything below it
    source     ``metadata.source``, e.g. the newspaper
    date       the day of ``metadata.published_at`` as questions write it: "October 30 2023"

A chunk without the metadata has an empty field.
"""

from datetime import datetime
from typing import Literal

from deepsearch_rl.records import Chunk

FieldName = Literal["contents", "title", "source", "date", "body"]
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def field_text(chunk: Chunk, name: FieldName) -> str:
    """What a field of a chunk says; empty where the chunk does not have it."""
    match name:
        case "contents":
            return chunk.contents
        case "title":
            return chunk.title
        case "body":
            return chunk.text
        case "source":
            return _metadata_text(chunk, "source")
        case "date":
            return written_date(_metadata_text(chunk, "published_at"))


def written_date(published_at: str) -> str:
    """The day of an ISO 8601 date or time in words ("October 30 2023"); any other text as it stands."""
    try:
        day = datetime.fromisoformat(published_at)
    except ValueError:
        return published_at
    return f"{MONTHS[day.month - 1]} {day.day} {day.year}"


def _metadata_text(chunk: Chunk, name: str) -> str:
    value = (chunk.metadata.model_extra or {}).get(name)
    return value if isinstance(value, str) else ""
