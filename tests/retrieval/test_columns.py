from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.retrieval.columns import BUFFER_ROWS, GrowingArray


@pytest.mark.parametrize("rows", [0, 1, BUFFER_ROWS, 2 * BUFFER_ROWS + 3])
def test_the_file_is_the_one_that_numpy_would_write(tmp_path: Path, rows: object) -> None:
    with GrowingArray(tmp_path / "grown.npy", np.int32) as grown:
        for value in range(rows):
            grown.append(value)
    np.save(tmp_path / "saved.npy", np.arange(rows, dtype=np.int32))
    assert (tmp_path / "grown.npy").read_bytes() == (tmp_path / "saved.npy").read_bytes()


def test_values_and_blocks_keep_their_order(tmp_path: Path) -> None:
    with GrowingArray(tmp_path / "a.npy", np.int64) as grown:
        grown.append(7)
        grown.extend(np.array([1, 2**40]))
        grown.append(9)
    assert np.load(tmp_path / "a.npy").tolist() == [7, 1, 2**40, 9]


def test_a_full_disk_is_an_error_with_its_number() -> None:
    full = GrowingArray(Path("/dev/full"), np.int64)
    for value in range(BUFFER_ROWS - 1):
        full.append(value)
    with pytest.raises(OSError, match="No space left on device"):
        full.append(0)
