"""Checking data frames, the flat tables that leave the project, against pandera schemas."""

import pandas as pd
import pandera.pandas as pa
from pandera.errors import SchemaErrors

from deepsearch_rl.core.errors import CheckFailedError


def check_frame(frame: pd.DataFrame, schema: pa.DataFrameSchema, file: str) -> pd.DataFrame:
    """Return the frame as ``schema`` reads it; raise CheckFailedError with ``file``, row (from 1) and field."""
    try:
        return schema.validate(frame, lazy=True)
    except SchemaErrors as error:
        case = pd.DataFrame(error.failure_cases).to_dict("records")[0]
        index = case["index"]
        check = case["check"]
        column = case["column"]
        value = case["failure_case"]

        # A missing column has no value, and stands in the value's place.
        if column is None or check in ("column_in_dataframe", "column_in_schema"):
            column = value
            value = ""

        row = f", row {index + 1}" if isinstance(index, int) else ""
        content = f"{value!r} " if value != "" else ""
        raise CheckFailedError(
            f"{file}{row}, field {column!r}: {content}fails the check {check!r}."
        ) from error
