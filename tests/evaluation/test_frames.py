from pathlib import Path

import pytest

from deepsearch_rl.errors import CheckFailedError
from deepsearch_rl.evaluation.frames import F1_BARS, RL_CURVE, write_frame


def test_a_frame_that_fits_is_written_as_it_is(tmp_path: Path) -> None:
    write_frame(tmp_path / "f1.csv", ["model", "f1"], [("base", 0.25), ("sft", 1)], F1_BARS)
    assert (tmp_path / "f1.csv").read_text() == "model,f1\nbase,0.25\nsft,1\n"


@pytest.mark.parametrize(
    ("lines", "column"),
    [([(1, 0.5, 1.2)], "f1"), ([(1, 0.5, 0.2), (1, 0.5, 0.3)], "step"), ([(1, "high", 0.2)], "reward")],
)
def test_a_value_that_does_not_fit_names_file_and_column_and_leaves_no_file(
    tmp_path: Path, lines: list[tuple[object, ...]], column: str
) -> None:
    with pytest.raises(CheckFailedError, match=rf"rl_sft\.csv[\s\S]*{column}"):
        write_frame(tmp_path / "rl_sft.csv", ["step", "reward", "f1"], lines, RL_CURVE)
    assert not (tmp_path / "rl_sft.csv").exists()
