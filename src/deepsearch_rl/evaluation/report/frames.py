"""The flat tables that leave the project as CSV, checked column by column with pandera before they are written.

Nested records are pydantic models; what is flat, and what plots and spreadsheets read, is a data frame with a schema.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import pandera.pandas as pa

from deepsearch_rl.files import atomic_file
from deepsearch_rl.frames import check_frame

_SHARE = pa.Check.in_range(0, 1)
_COUNT = pa.Check.ge(0)
_SCORES = ("em", "f1", "f1_low", "f1_high", "acc", "precision", "recall", "constant_f1")
F1_TABLE = pa.DataFrameSchema(
    {
        **{name: pa.Column(str) for name in ("model", "checkpoint", "dataset", "corpus", "prompt", "variant")},
        **{name: pa.Column(int, pa.Check.ge(1)) for name in ("top_k", "samples", "n")},
        "chunk_size": pa.Column(int, _COUNT),
        **{name: pa.Column(float, _SHARE, coerce=True) for name in _SCORES},
        **{name: pa.Column(float, _COUNT, coerce=True) for name in ("temperature", "mean_rounds", "mean_tool_calls")},
    },
    checks=pa.Check(lambda frame: (frame.f1_low <= frame.f1) & (frame.f1 <= frame.f1_high), name="f1 in its interval"),
    unique=["model", "checkpoint", "dataset", "corpus", "prompt", "top_k", "chunk_size", "temperature", "variant"],
)
"""One line per row of the F1 table; baselines and failures may stand beside these columns."""

F1_BARS = pa.DataFrameSchema({"model": pa.Column(str), "f1": pa.Column(float, _SHARE, coerce=True)}, strict=False)
"""What ``dvc plots`` draws as bars."""

RL_CURVE = pa.DataFrameSchema(
    {
        "step": pa.Column(int, _COUNT, unique=True),
        "reward": pa.Column(float, coerce=True),
        "f1": pa.Column(float, _SHARE, coerce=True),
    }
)
"""Reward and F1 of an RL run by step."""


def write_frame(
    path: Path, header: Sequence[str], lines: Iterable[Sequence[object]], schema: pa.DataFrameSchema
) -> None:
    """Write a CSV file by one rename, after reading it back and checking it against ``schema``.

    Raises:
        CheckFailedError: a column is missing, or a value does not fit; names file, row and field.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    check_frame(pd.read_csv(io.StringIO(out.getvalue()), keep_default_na=False), schema, path.name)
    with atomic_file(path) as partial:
        partial.write_text(out.getvalue(), encoding="utf-8")
