import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.search.rows import (
    BUFFER_BYTES,
    Filter,
    GrowingArray,
    RowTable,
    write_rows,
)
from tests.chunks import make_chunk

HEADER_BYTES = 128
ROWS = [
    {"source": "The Verge", "published_at": "2023-10-01T23:30:00+00:00"},
    {"source": "Wired", "published_at": "2023-10-02"},
    {"source": "The Verge", "published_at": "2023-12-31T00:00:00"},
    {"source": "The Verge"},
    {"published_at": "2023-10-02T08:00:00Z"},
    {"source": ["no", "text"], "published_at": "last autumn"},
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> RowTable:
    folder = tmp_path_factory.mktemp("rows")
    lines = [
        json.dumps({"id": str(row), "contents": "t\nb", "metadata": ROWS[row]})
        for row in range(len(ROWS))
    ]
    (folder / "chunks.jsonl").write_text("\n".join(lines))
    assert write_rows(folder / "chunks.jsonl", folder / "rows") == len(ROWS)
    return RowTable.open(folder / "rows")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"source": "The Verge"}, [0, 2, 3]),
        ({"source": "the verge"}, []),
        ({"source": "Nowhere"}, []),
        ({"after": "2023-10-02"}, [1, 2, 4]),
        ({"before": "2023-10-02"}, [0, 1, 4]),
        ({"after": "2023-10-02", "before": "2023-10-02"}, [1, 4]),
        ({"source": "The Verge", "after": "2023-10-02"}, [2]),
        ({"after": "2024-01-01"}, []),
        ({"before": "0001-01-01"}, []),
    ],
)
def test_both_bounds_belong_to_the_range_and_rows_without_the_field_never_match(
    rows: RowTable, where: object, expected: object
) -> None:
    assert rows.mask(Filter.model_validate(where)).nonzero()[0].tolist() == expected


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValidationError, match="is later than"):
        Filter(after=date(2024, 1, 2), before=date(2024, 1, 1))


def test_passages_with_a_date_that_cannot_be_read_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chunks = [
        make_chunk("a\nb", f"c{row}", published_at=published_at)
        for row, published_at in enumerate(["2023/10/30", "last autumn", "10/30/2023", "", "3 May"])
    ]
    write_jsonl(tmp_path / "chunks.jsonl", chunks)
    write_rows(tmp_path / "chunks.jsonl", tmp_path / "rows")
    assert "3 of 5 passages have a published_at that is no date ('last autumn', " in caplog.text
    mask_N = RowTable.open(tmp_path / "rows").mask(Filter(after=date(2023, 10, 1)))
    assert mask_N.tolist() == [True, False, False, False, False]


def test_columns_of_another_kind_are_refused(rows: RowTable, tmp_path: Path) -> None:
    assert rows.sources == ("The Verge", "Wired")
    for name in ("source.npy", "day.npy"):
        (tmp_path / name).write_bytes(
            b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (0,), }"
        )
    (tmp_path / "sources.json").write_text("[]")
    with pytest.raises(ArtifactError, match="build the index again"):
        RowTable.open(tmp_path)


@pytest.mark.parametrize("length", [0, 1, BUFFER_BYTES // 4, BUFFER_BYTES // 2 + 3])
def test_the_file_is_the_one_that_numpy_would_write(tmp_path: Path, length: int) -> None:
    with GrowingArray(tmp_path / "grown.npy", np.int32) as grown:
        for value in range(length):
            grown.append(value)
    np.save(tmp_path / "saved.npy", np.arange(length, dtype=np.int32))
    assert (tmp_path / "grown.npy").read_bytes() == (tmp_path / "saved.npy").read_bytes()


def test_values_and_blocks_keep_their_order(tmp_path: Path) -> None:
    with GrowingArray(tmp_path / "a.npy", np.int64) as grown:
        grown.append(7)
        grown.extend(np.array([1, 2**40]))
        grown.append(9)
    assert np.load(tmp_path / "a.npy").tolist() == [7, 1, 2**40, 9]


def test_a_full_disk_is_an_error_with_its_number() -> None:
    full = GrowingArray(Path("/dev/full"), np.int64)
    for value in range((BUFFER_BYTES - HEADER_BYTES) // 8):
        full.append(value)
    with pytest.raises(OSError, match="No space left on device"):
        full.append(0)
