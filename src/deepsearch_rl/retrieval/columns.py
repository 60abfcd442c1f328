"""Columns on disk: one-dimensional .npy files, written row by row and read through a memory map."""

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from deepsearch_rl.errors import ArtifactError

ScalarT = TypeVar("ScalarT", bound=np.generic)
BUFFER_ROWS = 65536


class GrowingArray(Generic[ScalarT]):
    """Appends scalars to a column whose length is known only at the last row; use as a context manager.

    The header, to which NumPy gives one size whatever the length, is a placeholder until the block ends without an
    error.
    """

    def __init__(self, path: Path, dtype: type[ScalarT]) -> None:
        self._dtype = np.dtype(dtype)
        self._buffer: list[int] = []
        self._rows = 0
        self._file = path.open("wb")
        self._write_header()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if error is None:
                self.extend(())
                self._file.seek(0)
                self._write_header()

    def _write_header(self) -> None:
        header = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._rows,)}
        npy.write_array_header_1_0(self._file, header)

    def append(self, value: int) -> None:
        """Add one row."""
        self._buffer.append(value)
        if len(self._buffer) == BUFFER_ROWS:
            self.extend(())

    def extend(self, values_N: NDArray[np.generic] | Sequence[int]) -> None:
        """Write the buffered rows, then N more."""
        for rows in (self._buffer, values_N):
            # Not tofile: its error of a full disk carries no errno.
            self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
            self._rows += len(rows)
        self._buffer.clear()


def open_column(path: Path, dtype: type[ScalarT]) -> NDArray[ScalarT]:
    """Map a column as a plain array; raise ArtifactError where it is missing or damaged."""
    try:
        column_N = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read ({error}); build the index again.") from error
    if column_N.dtype != np.dtype(dtype) or column_N.ndim != 1:
        raise ArtifactError(f"{path} is not a column of {np.dtype(dtype)}; build the index again.")
    return np.asarray(column_N)  # because slices of np.memmap cost microseconds each
