import re
from pathlib import Path

import pandera.pandas as pa
import pytest

from deepsearch_rl.errors import CheckFailedError
from deepsearch_rl.evaluation.report.tables import F1_TABLE, write_frame

CURVE = pa.DataFrameSchema(
    {
        "step": pa.Column(int, unique=True),
        "reward": pa.Column(float, coerce=True),
        "f1": pa.Column(float, pa.Check.in_range(0, 1), coerce=True),
    }
)


def test_a_frame_that_fits_is_written_as_it_is(tmp_path: Path) -> None:
    write_frame(tmp_path / "rl_sft.csv", ["step", "reward", "f1"], [(0, 0.25, 0), (1, 2, 0.5)], CURVE)
    assert (tmp_path / "rl_sft.csv").read_text() == "step,reward,f1\n0,0.25,0\n1,2,0.5\n"


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ([(1, 0.5, 0.1), (2, 0.5, 1.2)], "row 2, field 'f1': 1.2 "),
        ([(1, 0.5, 0.2), (1, 0.5, 0.3)], "row 1, field 'step': "),
        ([(1, "high", 0.2)], "row 1, field 'reward': 'high' "),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_file_row_and_field_and_leaves_no_file(
    tmp_path: Path, lines: list[tuple[object, ...]], where: str
) -> None:
    with pytest.raises(CheckFailedError, match=re.escape(f"rl_sft.csv, {where}")):
        write_frame(tmp_path / "rl_sft.csv", ["step", "reward", "f1"], lines, CURVE)
    assert not (tmp_path / "rl_sft.csv").exists()


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError, match=re.escape("rl_sft.csv, field 'f1': ")):
        write_frame(tmp_path / "rl_sft.csv", ["step", "reward"], [(1, 0.5)], CURVE)


def test_an_f1_outside_its_interval_is_named_by_its_row(tmp_path: Path) -> None:
    good = {name: "x" for name in ("model", "checkpoint", "dataset", "corpus", "prompt")}
    good |= {name: 1 for name in ("top_k", "chunk_size", "samples", "n", "temperature", "mean_rounds")}
    good |= {name: 0.5 for name in ("em", "f1", "f1_low", "f1_high", "acc", "precision", "recall", "constant_f1")}
    good |= {"mean_tool_calls": 1}
    bad = good | {"f1_low": 0.6, "model": "y"}
    with pytest.raises(CheckFailedError, match=r"f1_table\.csv, row 2.*f1 in its interval"):
        write_frame(tmp_path / "f1_table.csv", list(good), [list(good.values()), list(bad.values())], F1_TABLE)
