import re

import pandas as pd
import pandera.pandas as pa
import pytest

from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.core.files import check_frame
from deepsearch_rl.evaluate.table_files import F1_TABLE

CURVE = pa.DataFrameSchema(
    {
        "step": pa.Column(int, unique=True),
        "reward": pa.Column(float, coerce=True),
        "f1": pa.Column(float, pa.Check.in_range(0, 1), coerce=True),
    }
)


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ([(1, 0.5, 0.1), (2, 0.5, 1.2)], "row 2, field 'f1': 1.2 "),
        ([(1, 0.5, 0.2), (1, 0.5, 0.3)], "row 1, field 'step': "),
        ([(1, "high", 0.2)], "row 1, field 'reward': 'high' "),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_file_row_and_field(
    lines: list[tuple[object, ...]], where: str
) -> None:
    with pytest.raises(CheckFailedError, match=re.escape(f"rl_sft.csv, {where}")):
        check_frame(pd.DataFrame(lines, columns=["step", "reward", "f1"]), CURVE, "rl_sft.csv")


def test_a_missing_column_is_named() -> None:
    with pytest.raises(CheckFailedError, match=re.escape("rl_sft.csv, field 'f1': ")):
        check_frame(pd.DataFrame([(1, 0.5)], columns=["step", "reward"]), CURVE, "rl_sft.csv")


def test_an_f1_outside_its_interval_is_named_by_its_row() -> None:
    good = {name: "x" for name in ("model", "checkpoint", "dataset", "corpus", "prompt")}
    good |= {
        name: 1 for name in ("top_k", "chunk_size", "samples", "n", "temperature", "mean_rounds")
    }
    good |= {
        name: 0.5
        for name in ("em", "f1", "f1_low", "f1_high", "acc", "precision", "recall", "constant_f1")
    }
    good |= {"mean_tool_calls": 1}
    bad = good | {"f1_low": 0.6, "model": "y"}
    with pytest.raises(CheckFailedError, match=r"f1_table\.csv, row 2.*f1 in its interval"):
        check_frame(pd.DataFrame([good, bad]), F1_TABLE, "f1_table.csv")
