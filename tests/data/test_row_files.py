"""Files of rows: the formats that are read, and errors about those that are not."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ArtifactError, RecordError
from deepsearch_rl.data import flashrag
from deepsearch_rl.search.rows import read_chunks

ROWS = [
    {"id": "1", "text": 'Aaron, a "prophet"\nand priest', "title": "Aaron"},
    {"id": "2", "text": "\u6c34 is wet", "title": ""},
]
JSON_LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
TSV = 'id\ttext\ttitle\n1\t"Aaron, a ""prophet""\nand priest"\tAaron\n2\t\u6c34 is wet\t\n'
CSV = TSV.replace("\t", ",")
BOM = b"\xef\xbb\xbf"


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def parquet(compression: str) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), out, compression=compression)
    return out.getvalue()


FORMATS = {
    "lines": ("c.jsonl", JSON_LINES.encode()),
    "lines of any name": ("c.txt", b"\n \n" + JSON_LINES.encode().rstrip()),
    "lines with a byte order mark": ("c.jsonl", BOM + JSON_LINES.encode()),
    "BEIR": ("c.jsonl", JSON_LINES.replace('"id"', '"_id"').encode()),
    "array": ("c.json", json.dumps(ROWS).encode()),
    "indented array": ("c.json", BOM + json.dumps(ROWS, indent=2).encode() + b"\n"),
    "DPR's table": ("psgs_w100.tsv", TSV.encode()),
    "table of Windows": ("c.csv", BOM + CSV.replace("\n2", "\r\n2").encode()),
    "Parquet": ("c.parquet", parquet("snappy")),
    "Parquet of any name": ("c.data", parquet("zstd")),
    "gzip": ("c.jsonl.gz", zipped(JSON_LINES.encode())),
    "gzip of any name": ("c.jsonl", zipped(JSON_LINES.encode())),
    "gzipped table": ("psgs_w100.tsv.gz", zipped(TSV.encode())),
    "gzipped array": ("c.json.gz", zipped(json.dumps(ROWS).encode())),
    "gzipped Parquet": ("c.parquet.gz", zipped(parquet("snappy"))),
}


def convert(source: Path, out: Path) -> None:
    command = ["retrieve", "convert", str(source), str(out)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_read_and_converted(tmp_path: Path, name: str) -> None:
    file, data = FORMATS[name]
    (tmp_path / file).write_bytes(data)
    read = list(flashrag.read_documents(tmp_path / file))
    assert [(each.id, each.contents, each.metadata) for each in read] == [
        ("1", 'Aaron\nAaron, a "prophet"\nand priest', {}), ("2", "\n\u6c34 is wet", {}),
    ]  # fmt: skip
    convert(tmp_path / file, tmp_path / "out.jsonl")
    assert [chunk.contents for _, _, chunk in read_chunks(tmp_path / "out.jsonl")] == [
        one.contents for one in read
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x28\xb5\x2f\xfd\x04", r"neither text nor .*load_dataset\(\.\.\.\)\.to_json"),
        (b"PK\x03\x04 a zip", "Unpack an archive"),
        (JSON_LINES.encode("utf-16"), "neither text nor"),
        (b"SQLite format 3\x00", "neither text nor"),
        (zipped(JSON_LINES.encode())[:-9], "cannot be read: Compressed file ended"),
        (b"PAR1 and nothing else", "cannot be read as Parquet"),
    ],
)
def test_other_formats_and_damaged_files_are_refused(
    tmp_path: Path, data: bytes, words: str
) -> None:
    (tmp_path / "c.jsonl").write_bytes(data)
    with pytest.raises(ArtifactError, match=rf"c\.jsonl .*{words}"):
        list(flashrag.read_documents(tmp_path / "c.jsonl"))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("absent.jsonl", None, "No such file"),
        ("c.csv", "id,text\n1,caf\u00e9\n".encode("latin-1"), "is not UTF-8 text .*iconv"),
    ],
)
def test_missing_files_and_other_encodings_are_refused(
    tmp_path: Path, name: str, data: bytes | None, words: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=words):
        list(flashrag.read_documents(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        ("c.tsv", "1\tSome text\n2\tMore\n", 2, "Field required; the row has 1, Some text"),
        ("c.tsv", "id\ttext\n1\ta\tb\n", 2, "3 cells for 2 columns"),
        ("c.csv", "id,text\n1,x\n2\n", 3, "1 cells for 2 columns"),
        ("c.csv", "id,text,text\n1,x,y\n", 1, "field 'text': two columns have this name"),
        ("c.tsv", 'id\ttext\n1\t"Foo" bar\n', 2, "double the quotes"),
        ("c.json", '[{"id": "1", "text": "x"},\n {"id": "2", "text": }]', 2, "array is damaged"),
        ("c.json", '[{"id": "1", "text": "x"}, 7]', 2, "object"),
        ("c.jsonl", '{\n "id": "1",\n "text": "x"\n}\n', 1, "every line must hold one JSON object"),
        ("c.jsonl", '{"id": "1", "text": "x"}{"id": "2"}\n', 1, "every line must hold one"),
        ("c.jsonl", "<!DOCTYPE html>", 1, "every line must hold one JSON object"),
    ],
)
def test_a_row_that_does_not_fit_is_named(
    tmp_path: Path, name: str, text: str, line: int, words: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=words) as caught:
        list(flashrag.read_documents(tmp_path / name))
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pa.array([-(10**17)], pa.timestamp("us")), "out of range"),
        (pa.array([b"caf\xe9"]), "bytes"),
    ],
    ids=["a year before 1", "bytes"],
)
def test_a_parquet_cell_without_a_json_form_is_refused(
    tmp_path: Path, column: Any, problem: str
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": pa.array(["1"]), "other": column}), path)
    with pytest.raises(RecordError, match=rf"no JSON form \(.*{problem}.*drop its column"):
        list(flashrag.read_documents(path))


@pytest.mark.parametrize("name", ["header.csv", "nothing.jsonl"])
def test_a_file_without_documents_is_not_converted_into_an_empty_one(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("id,title,text\n" if name.endswith("csv") else "")
    with pytest.raises(ArtifactError, match=rf"{name} (holds no document|is empty)"):
        convert(tmp_path / name, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("name", ["array", "DPR's table", "Parquet"])
def test_an_index_over_another_format_names_the_command_that_converts_it(
    tmp_path: Path, name: str
) -> None:
    file, data = FORMATS[name]
    (tmp_path / file).write_bytes(data)
    with pytest.raises(ArtifactError, match="with `deepsearch retrieve convert "):
        list(read_chunks(tmp_path / file))
