"""The benchmark of tracking sends a report of the kind that a profile's results make."""

from pathlib import Path

import pytest

from benchmarks import tracking
from tests.track.conftest import new_store


@pytest.mark.slow
def test_a_small_report_is_built_and_sent_with_its_predictions_and_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "MODELS", ("base", "sft"))
    monkeypatch.setattr(tracking, "QUESTIONS", {"a": 10})
    monkeypatch.setattr(tracking, "RUNS", (("a", 2, 0.7), ("a", 1, 0.0)))
    results = tracking.make_results(tmp_path / "results", seed=0)
    new_store(tmp_path / "store")

    cpu_s, _, predictions, traces = tracking.measure(results, tmp_path / "store", None, 0.5)
    assert cpu_s > 0
    assert predictions == 2 * (10 * 2 + 10)
    assert 0 < traces < predictions
