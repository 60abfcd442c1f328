"""A JSON array of rows, read entry by entry."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from deepsearch_rl.core.errors import RecordError

# Characters that are read at once; a longer entry is read in blocks that grow
BLOCK_CHARS = 1 << 20

# The number of a row, from 1, and its JSON text. Lines are counted in text files, otherwise rows.
Row = tuple[int, bytes]


def read_entries(stream: BinaryIO, path: Path) -> Iterator[Row]:
    """Yield the entries of a JSON array, holding one of them and a block of text at a time."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig")
    decoder = json.JSONDecoder()
    # Read by hand: the standard parser would hold the whole file
    buffer = text.read(BLOCK_CHARS).lstrip().removeprefix("[")
    number = 0

    while True:
        buffer = buffer.lstrip()
        if not buffer:
            buffer = text.read(BLOCK_CHARS)
            if not buffer:
                raise RecordError(
                    path, number, "", "the JSON array ends after this entry without its bracket `]`"
                )

            continue

        if buffer[0] == "]":
            _require_end(buffer[1:], text, path, number)
            return
        if buffer[0] == "," and number:
            buffer = buffer[1:]
            continue

        number += 1
        entry, buffer = _next_entry(buffer, text, decoder, path, number)
        yield number, entry.encode("utf-8", "surrogatepass")


def _require_end(buffer: str, text: io.TextIOWrapper, path: Path, number: int) -> None:
    """Raise RecordError where anything but white space stands behind the array's end."""
    while not buffer.strip():
        buffer = text.read(BLOCK_CHARS)
        if not buffer:
            return

    raise RecordError(
        path,
        number,
        "",
        f"the JSON array ends after this entry, and more text follows ({buffer.strip()[:20]!r}); if that is "
        "another array, write all rows as lines: `jq -c '.[]' FILE > NEW`",
    )


def _next_entry(
    buffer: str, text: io.TextIOWrapper, decoder: json.JSONDecoder, path: Path, number: int
) -> tuple[str, str]:
    """Return the text of the entry that ``buffer`` begins with, and what stands behind it."""
    block_chars = BLOCK_CHARS
    while True:
        try:
            _, end = decoder.raw_decode(buffer)
        except (json.JSONDecodeError, RecursionError) as error:
            more = text.read(block_chars)
            # So that a long entry is not parsed from its beginning again and again
            block_chars *= 2
            if not more or isinstance(error, RecursionError):
                raise RecordError(
                    path, number, "", f"this entry of the JSON array is no JSON: {error}"
                ) from error

            buffer += more
            continue

        # A number may go on behind the block: 12 in this one, 34 in the next.
        if end == len(buffer) and (more := text.read(block_chars)):
            buffer += more
            continue
        return buffer[:end], buffer[end:]
