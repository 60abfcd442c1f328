"""Files that a layout's reader must not take for whole, and what it says about them."""

import contextlib
import gzip
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from deepsearch_rl.core.errors import ArtifactError, RecordError
from deepsearch_rl.data import json_array
from deepsearch_rl.data.layouts import read_numbered

LINE = '{"id": "1", "text": "a"}\n'
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


def zip_with(offset: int, value: int) -> bytes:
    """A zip of one file, one byte of both of whose headers is changed; ``offset`` is in the first one."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("rows.jsonl", LINE)
    data = bytearray(out.getvalue())
    directory = data.index(b"PK\x01\x02")
    # The second header has two bytes more in front
    data[offset] = data[directory + offset + 2] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(zip_with(6, 1), "password required"), (zip_with(8, 9), "compression method")],
    ids=["encrypted", "Deflate64"],
)
def test_a_zip_that_cannot_be_unpacked_is_named_with_the_tool_that_can(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    path = tmp_path / "rows.zip"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=rf"{reason}.*`7z x FILE`"):
        list(read_numbered(path))


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pa.array([-(10**17)], pa.timestamp("us")), "out of range"),
        (pa.array([b"caf\xe9"]).view(pa.string()), "can't decode byte"),
    ],
    ids=["a year before 1", "no UTF-8"],
)
def test_a_cell_that_python_cannot_hold_is_named_by_its_column(
    tmp_path: Path, column: Any, problem: str
) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"id": pa.array(["1"]), "other": column}), path)
    with pytest.raises(RecordError, match=rf"line 1: field 'other': .*{problem}.*leave it out"):
        list(read_numbered(path))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,text,text\n1,first,second\n", encoding="utf-8")
    cells = [pa.array(["1"]), pa.array(["first"]), pa.array(["second"])]
    parquet.write_table(
        pa.Table.from_arrays(cells, names=["id", "text", "text"]), tmp_path / "rows.parquet"
    )
    for name in ("rows.csv", "rows.parquet"):
        with pytest.raises(RecordError, match=r"line 1: field 'text': two columns have this name"):
            list(read_numbered(tmp_path / name))


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"])
@pytest.mark.parametrize("text", [LINE, "id,text\n1,a\n"])
def test_text_of_wide_characters_is_known_without_a_byte_order_mark(
    tmp_path: Path, encoding: str, text: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(ArtifactError, match=f"iconv -f {encoding} -t UTF-8"):
        list(read_numbered(path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("psgs.tsv", "id\ttext\n0\tone\n1\ttwo\n"),
        ("rows.json", '[{"id": "0", "text": "one"}, {"id": "1", "text": "two"}]'),
        ("rows.jsonl", '\ufeff{"id": "0", "text": "one"}\n{"id": "1", "text": "two"}'),
    ],
    ids=["a table", "an array", "lines"],
)
def test_the_files_of_a_tar_may_have_any_layout_of_text_and_follow_each_other(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / "rows.tar.gz"
    files = {
        f"a/{name}": text.encode(),
        f"a/._{name}": b"\0\x05\x16\x07",
        f"b/{name}": text.encode(),
    }
    with tarfile.open(path, "w:gz") as archive:
        for member_name, data in files.items():
            member = tarfile.TarInfo(member_name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

    rows = list(read_numbered(path))
    assert [json.loads(row)["text"] for _, row in rows] == ["one", "two"] * 2
    assert [number for number, _ in rows] == sorted({number for number, _ in rows})


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (gzip.compress(LINE.encode()), "gzipped in another archive; unpack it"),
        (b"\x28\xb5\x2f\xfd\x04", "zstd -d"),
        (LINE.encode("utf-16"), "iconv -f UTF-16"),
    ],
    ids=["gzip", "zstd", "UTF-16"],
)
def test_a_file_in_a_tar_that_is_no_text_of_rows_is_named_as_what_it_is(
    tmp_path: Path, data: bytes, told: str
) -> None:
    path = tmp_path / "rows.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("rows.jsonl")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    with pytest.raises(ArtifactError, match=told):
        list(read_numbered(path))
