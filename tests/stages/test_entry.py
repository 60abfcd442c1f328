import errno
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deepsearch_rl.cli.summary import latest_runs
from deepsearch_rl.core import stage_entry as entry
from deepsearch_rl.core.errors import CheckFailedError, ConfigError, EndpointError
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage_entry import run


@pytest.fixture
def params_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "params.yaml"
    path.write_text("profile: tiny\n")
    (tmp_path / "dvc.yaml").write_text(
        "stages: {example: {cmd: a}, each: {foreach: [sft], do: {cmd: b}}}"
    )
    return path


@pytest.fixture
def long_profile(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The gpu profile with an hour for all."""
    folder = tmp_path / "profiles" / "gpu"
    folder.mkdir(parents=True)
    for name in ("params.yaml", "dvc.yaml"):
        text = (root / "profiles" / "gpu" / name).read_text()
        text = re.sub(r"max_hours: [\d.]+", "max_hours: 1", text)
        (folder / name).write_text(text.replace("stages:\n", "stages:\n  example: {cmd: a}\n", 1))
    monkeypatch.chdir(tmp_path)
    return folder / "params.yaml"


def run_stage(
    monkeypatch: pytest.MonkeyPatch, main: Callable[[Profile], None], *arguments: str
) -> int | str | None:
    """The status with which ``python -m stages.example ARGUMENTS`` ends."""
    monkeypatch.setattr(sys, "argv", ["stages/example.py", *arguments])
    try:
        run(main)
    except SystemExit as ended:
        return ended.code
    return 0


def test_a_finished_stage_notes_its_time_and_memory(
    params_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["stages/each.py", str(params_file), "sft"])
    items: list[str] = []

    def main(_: Profile, item: str) -> None:
        items.append(item)

    run(main)
    assert items == ["sft"]
    (noted,) = latest_runs(params_file.parent, "tiny")
    assert noted.stage == "each@sft"
    assert noted.peak_mb > 10


def test_a_full_disk_under_the_times_fails_no_stage_and_no_later_run(
    params_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[Profile] = []

    def main(profile: Profile) -> None:
        runs.append(profile)

    timings = params_file.parent / entry.TIMINGS
    timings.parent.mkdir()
    timings.symlink_to("/dev/full")
    assert run_stage(monkeypatch, main, str(params_file)) == 0
    assert "the time of example is not noted in work/timings.jsonl: No space left" in caplog.text

    # What a full disk cuts off in the middle stays, and the next line begins behind it
    timings.unlink()
    timings.write_text('{"profile": "tiny", "sta', encoding="utf-8")
    assert latest_runs(params_file.parent, "tiny") == []
    assert run_stage(monkeypatch, main, str(params_file)) == 0
    assert [noted.stage for noted in latest_runs(params_file.parent, "tiny")] == ["example"]
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [(EndpointError("gone"), entry.OUTSIDE_STATUS), (ConfigError("set KEY"), "error: set KEY")],
)
def test_the_status_says_whether_another_attempt_can_help(
    error: Exception, status: object, params_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(_: Profile) -> None:
        raise error

    assert run_stage(monkeypatch, main, str(params_file)) == status


def test_a_stage_for_each_model_needs_the_models_name(
    params_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["stages/each.py", str(params_file)])

    def main(_: Profile, item: str) -> None:
        pytest.fail(f"it ran for {item}")

    with pytest.raises(SystemExit):
        run(main)
    assert "the following arguments are required: item" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stage_of_a_gpu_profile_that_would_take_too_long_does_not_begin(
    long_profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Profile] = []

    def main(profile: Profile) -> None:
        begun.append(profile)

    status = run_stage(monkeypatch, main, str(long_profile.relative_to(Path.cwd())))
    assert re.fullmatch(
        r"error: profile gpu would take [\d.]+ hours .* requires\.max_hours 1 in .*", str(status)
    )
    assert begun == []
    long_profile.write_text(long_profile.read_text().replace("max_hours: 1", "max_hours: null"))
    assert run_stage(monkeypatch, main, str(long_profile)) == 0
    assert len(begun) == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CheckFailedError("the proof failed."), "error: the proof failed."),
        (
            OSError(errno.ENOSPC, "No space left", "data/x"),
            "error: the disk is full (data/x). Free some space",
        ),
        (
            RuntimeError("I/O error: No space left on device (os error 28)"),
            "error: the disk is full (while writing).",
        ),
    ],
)
def test_an_error_is_one_paragraph_and_no_traceback(
    params_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    message: str,
) -> None:
    def main(_: Profile) -> None:
        raise error

    status = run_stage(monkeypatch, main, str(params_file))
    assert str(status).startswith(message)
    assert "Traceback" not in capsys.readouterr().err
    assert latest_runs(params_file.parent, "tiny") == []
    run_stage(monkeypatch, main, str(params_file), "--debug")
    assert "Traceback" in capsys.readouterr().err


def test_a_stage_does_not_begin_with_other_packages_than_would_be_recorded(
    params_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "ROOT", params_file.parent)
    interpreter = Path(sys.prefix, "bin", "python")
    params_file.write_text(
        f"profile: tiny\npackages: packages.json\npython: {{core: {interpreter}}}\n"
    )
    (params_file.parent / "dvc.yaml").write_text(
        "stages: {example: {cmd: a, params: [{packages.json: [example]}]}}"
    )
    (params_file.parent / "packages.json").write_text('{"example": {"core": {"pydantic": "0.1"}}}')

    def main(_: Profile) -> None:
        pytest.fail("it ran")

    assert "(recorded: 0.1)" in str(run_stage(monkeypatch, main, str(params_file)))
