"""The scoring benchmark compares two ways that give the same means."""

from pathlib import Path

import pytest

from benchmarks.scoring import loop_means, make_rows, ours
from deepsearch_rl.core.files import write_jsonl


def test_the_loop_and_the_command_agree_on_generated_answers(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    rows = make_rows(400, seed=1)
    assert rows == make_rows(400, seed=1)
    write_jsonl(path, rows)
    report = ours(path, draws=0)
    assert report.metrics == pytest.approx(loop_means(path), rel=0, abs=1e-12)
    assert sum(group.n for group in report.types.values()) == report.n == 400
    assert 0.4 < report.metrics["em"] < 0.7
