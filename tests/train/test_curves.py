"""The curve of a run: what is in its file, and what training does where it cannot be written."""

import errno
import logging
from pathlib import Path

import pytest
from scipy import stats

from deepsearch_rl.core.files import AppendLog, read_jsonl
from deepsearch_rl.train.curves import (
    CurveLine,
    TrainingStep,
    curve_path,
    record_step,
    recorded_curve,
    standard_error,
)


def lines_of(path: Path) -> list[tuple[int | None, str | None]]:
    return [(line.step, line.end) for line in read_jsonl(path, CurveLine)]


def _fail_after(step: int) -> None:
    record_step({"step": step, "loss": float("nan")})
    raise ValueError("two")


def test_a_curve_has_every_step_and_how_the_run_ended(tmp_path: Path) -> None:
    path = curve_path(tmp_path, "sft-0123")
    record_step({"step": 1, "loss": 2.5})  # nobody asks for a curve
    with recorded_curve(path):
        assert not path.exists(), "a run without a step has no curve"
        record_step({"step": 1, "loss": 2.5, "kl": None})
    with pytest.raises(ValueError, match="two"), recorded_curve(path):
        _fail_after(2)
    first, _, second, _ = read_jsonl(path, CurveLine)
    assert first.metrics == {"loss": 2.5}
    assert second.metrics.get("loss") is None
    assert lines_of(path) == [(1, None), (None, "FINISHED"), (2, None), (None, "FAILED")]


def test_a_run_that_was_killed_behind_its_last_step_gets_its_end_from_the_process_after_it(
    tmp_path: Path,
) -> None:
    path = curve_path(tmp_path, "sft-0123")
    with recorded_curve(path):
        record_step({"step": 1, "loss": 2.5})
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    for _ in range(2):
        with recorded_curve(path):
            pass
    assert lines_of(path) == [(1, None), (None, "FINISHED")]


def test_a_line_that_a_kill_cut_off_is_gone_when_the_next_step_is_recorded(tmp_path: Path) -> None:
    path = curve_path(tmp_path, "sft-0123")
    path.parent.mkdir()
    path.write_text('{"time_ms": 5, "step": 1, "metrics": {"loss": 2.5}}\n{"time_ms": 7, "st')
    with recorded_curve(path):
        record_step({"step": 2, "loss": 2.0})
    assert lines_of(path) == [(1, None), (2, None), (None, "FINISHED")]


def test_a_full_disk_costs_the_curve_and_one_notice_and_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = curve_path(tmp_path, "sft-0123")
    with caplog.at_level(logging.WARNING), recorded_curve(path):
        with monkeypatch.context() as patch:
            patch.setattr(AppendLog, "append", refuse)
            record_step({"step": 1, "loss": 2.5})
            record_step({"step": 2, "loss": 2.0})
        record_step({"step": 3, "loss": 1.5})
    (notice,) = caplog.messages
    assert str(path) in notice
    assert "No space left on device" in notice
    assert lines_of(path) == [(3, None), (None, "FINISHED")]


def test_the_interval_of_a_mean_is_the_normal_one_of_its_logged_error() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    step = TrainingStep.model_validate(
        {"step": 3, "dev_f1": 0.6, **standard_error("dev_f1", values), "reward": 1.0}
    )
    error = stats.sem(values)
    assert step.interval("dev_f1") == pytest.approx(stats.norm.interval(0.95, 0.6, error), abs=1e-4)
    assert step.interval("reward") is None, "an earlier log has no error"
    assert step.interval("f1") is None
    assert standard_error("dev_f1", [0.6]) == {}
