"""The pages of ``POST /access``: a JSON Lines file that stays on disk, and where in it each URL's page is.

ASearcher's pages of Wikipedia are one file of some 20 GB, so that none is held in memory.
"""

import os
from pathlib import Path

from pydantic_core import to_json

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import missing, parse_record
from deepsearch_rl.core.records import OpenRecord, RequiredText, Text
from deepsearch_rl.data.row_files import BOM, LINES, layout_of

NO_PAGE = b"null"


class Page(OpenRecord):
    """One page of a pages file; further keys are sent as they are."""

    url: RequiredText
    contents: Text


def normalise_url(url: str) -> str:
    """Return the one spelling of a wiki page's two (ASearcher's rule)."""
    return url.replace("index.php/", "index.php?title=")


class PageFile:
    """A pages file, read once to check it; safe to use from several threads.

    Where two lines have one URL, the last is its page; a byte order mark is skipped. Raises
    ArtifactError where there is no such file or it is not plain JSON Lines, RecordError where a line
    is no page.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ArtifactError(missing(path))
        layout = layout_of(path)
        if layout != LINES:
            raise ArtifactError(
                f"{path} is {layout}, and pages are read by their position in plain JSON Lines; unpack it, or write "
                "one page a line."
            )

        self._places: dict[str, tuple[int, int]] = {}
        self._file = path.open("rb")
        offset = 0
        if self._file.peek(len(BOM)).startswith(BOM):
            offset = self._file.seek(len(BOM))
        for number, line in enumerate(self._file, 1):
            if line.strip():
                page = parse_record(Page, line, path, number)
                self._places[normalise_url(page.url)] = offset, len(line)
            offset += len(line)

    def find(self, url: str) -> bytes:
        """Return a page as JSON, or null where there is no such page."""
        place = self._places.get(normalise_url(url))
        if place is None:
            return NO_PAGE

        offset, length = place
        # Without a position in the file: several threads read at once
        line = os.pread(self._file.fileno(), length, offset)
        return to_json(Page.model_validate_json(line), inf_nan_mode="null")
