"""The pages that ``POST /access`` hands out (ASearcher, RLinf), by URL."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from deepsearch_rl.files import read_jsonl
from deepsearch_rl.records import NonEmpty


class Page(BaseModel):
    """One page of a pages file; further keys are handed on as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")

    url: NonEmpty
    contents: str


def normalise_url(url: str) -> str:
    """ASearcher's rule: both spellings of a wiki page's address mean the same page."""
    return url.replace("index.php/", "index.php?title=")


def read_pages(path: Path) -> dict[str, bytes]:
    """The pages of a JSON Lines file, as JSON, by normalised URL.

    Raises:
        ArtifactError: the file does not exist.
        RecordError: a line has no ``url`` or no ``contents``.
    """
    return {normalise_url(page.url): to_json(page, inf_nan_mode="null") for page in read_jsonl(path, Page)}
