"""Files that a layout's reader must not take for whole, and what it says about them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError, RecordError
from deepsearch_rl.corpora.reading import json_array
from deepsearch_rl.corpora.reading.layouts import read_numbered

ARRAY = b'[{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]'


@pytest.mark.parametrize("block_chars", [7, 1 << 20])
@pytest.mark.parametrize("behind", [b"\n" + ARRAY, ARRAY, b" " * 20 + b"{}", b"\ngarbage"])
def test_text_behind_a_json_array_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: bytes, block_chars: int
) -> None:
    monkeypatch.setattr(json_array, "BLOCK_CHARS", block_chars)
    path = tmp_path / "corpus.json"
    path.write_bytes(ARRAY + behind)
    with pytest.raises(RecordError, match=r"line 2: .*more text follows.*jq -c '\.\[\]' FILE"):
        list(read_numbered(path))


def test_white_space_behind_a_json_array_is_none(tmp_path: Path) -> None:
    path = tmp_path / "corpus.json"
    path.write_bytes(ARRAY + b" \r\n\n")
    assert [number for number, _ in read_numbered(path)] == [1, 2]


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """Be another user than root, whom no permission binds."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    path.chmod(0)
    with (
        without_rights(),
        pytest.raises(ArtifactError, match=r"may not be read by this user; .*`chmod`"),
    ):
        list(read_numbered(path))
