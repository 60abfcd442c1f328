"""Real processes that hang, die and are killed under the watchdog."""

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import CommandError, DeepsearchError
from deepsearch_rl.train.rl.watchdog import OUTPUT_LOG, WatchdogConfig, watch
from tests.core.test_processes import gone

CHILD = [sys.executable, "-m", "tests.train.rl.watched_child"]
Fault = tuple[int, str, str]
Watch = Callable[..., None]


@pytest.fixture
def watch_child(tmp_path: Path) -> Watch:
    """Watch a child of some steps with faults; only phases named in ``limits`` have a short limit."""

    def run(faults: list[Fault], restarts: int = 3, steps: int = 3, **limits: float) -> None:
        settings = {"folder": str(tmp_path), "steps": steps, "faults": faults}
        config = {"start_s": 60, "rollout_s": 60, "update_s": 60, "restarts": restarts, **limits}
        watch(
            "rl@tiny", CHILD, json.dumps(settings), WatchdogConfig.model_validate(config), tmp_path
        )

    return run


def steps(folder: Path) -> list[str]:
    return (folder / "steps").read_text().split()


@pytest.mark.slow
def test_a_child_that_ends_well_is_started_once_and_its_output_is_logged(
    watch_child: Watch, tmp_path: Path
) -> None:
    watch_child([])
    assert steps(tmp_path) == ["1", "2", "3"]
    assert (tmp_path / OUTPUT_LOG).read_text() == "step 1\nstep 2\nstep 3\n"


@pytest.mark.slow
def test_a_child_goes_on_where_nobody_takes_its_output_any_more(
    watch_child: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a terminal that is gone, or a file on a full disk
    with Path("/dev/full").open("w", buffering=1, encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stderr", full)
        watch_child([], restarts=0, steps=30)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()

    assert (tmp_path / OUTPUT_LOG).read_text().count("step ") == 30


@pytest.mark.slow
def test_a_phase_that_hangs_ends_with_all_that_it_started_and_the_next_child_continues(
    watch_child: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch_child([(2, "update", "hang")], update_s=1)
    assert gone(tmp_path / "hanging.pid", within_s=0)
    assert steps(tmp_path) == ["1", "2", "3"]
    [warning] = caplog.messages
    for part in ("rl@tiny", "step 2, phase 'update'", "rl.watchdog.update_s", "1 of 3"):
        assert part in warning


PROBLEMS = {
    "be killed": "the process was killed by SIGKILL, as the system does when memory is full",
    "exit": "the process ended with exit status 7.",
    "diverge": "the update was not applied: its loss is nan.",
    "lose a worker": "veRL's trainer ended with exit code 1.",
    "lose a server": "the policy's server does not answer at http://127.0.0.1:9/health; it did at ",
    "CUDA out of memory. Tried to allocate 2.00 GiB.": (
        "The GPU's memory is full: lower rl.max_sequence_tokens"
    ),
    "Child process was killed by signal 9": (
        "The process that trains and serves the policy has ended"
    ),
}
"""What a child can die of, and how that is named."""


@pytest.mark.slow
def test_what_dies_is_started_again_and_named(
    watch_child: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A child dies at each step, in the two phases by turns, until it has died of everything once."""
    phases = itertools.cycle(["roll out", "update"])
    places = list(zip(itertools.count(1), phases, PROBLEMS, strict=False))
    watch_child(places, steps=len(places))
    assert steps(tmp_path) == [str(step) for step, *_ in places]
    for (step, phase, fault), message in zip(places, caplog.messages, strict=True):
        assert f"step {step}, phase '{phase}': {PROBLEMS[fault]}" in message


@pytest.mark.slow
def test_as_many_failures_at_one_step_as_params_allow_are_an_error_that_says_where_and_why(
    watch_child: Watch, tmp_path: Path
) -> None:
    faults = [
        (1, "update", "exit"),
        (2, "roll out", "be killed"),
        (2, "start", "exit"),
        (2, "update", "no such device"),
    ]
    with pytest.raises(CommandError) as caught:
        watch_child(faults, restarts=2)
    assert "rl@tiny failed at step 2, phase 'update': RuntimeError: no such device" in str(
        caught.value
    )
    assert f"All output is in {tmp_path / OUTPUT_LOG}." in str(caught.value)
    assert "Traceback" in (tmp_path / OUTPUT_LOG).read_text()
    assert steps(tmp_path) == ["1"]
    watch_child(faults, restarts=2)
    assert steps(tmp_path) == ["1", "2", "3"]


@pytest.mark.slow
def test_an_error_that_only_a_user_can_fix_ends_the_first_child_with_its_own_paragraph(
    watch_child: Watch, tmp_path: Path
) -> None:
    with pytest.raises(DeepsearchError) as caught:
        watch_child([(1, "start", "refuse")])
    assert str(caught.value) == "rl.steps has no entry; add one."
    assert "ConfigError" in "".join(caught.value.__notes__), "for --debug"
    assert not (tmp_path / "steps").exists()


@pytest.mark.slow
def test_a_sampler_that_does_not_start_ends_the_first_child_and_one_that_fails_later_does_not(
    watch_child: Watch, tmp_path: Path
) -> None:
    watch_child([(2, "update", "fail as a server"), (2, "start", "lose a server")])
    assert steps(tmp_path) == ["1", "2", "3"]
    (tmp_path / "steps").unlink()
    (tmp_path / "happened").unlink()
    with pytest.raises(DeepsearchError, match=r"^vLLM ended with status 2\."):
        watch_child([(1, "start", "fail as a server")])
    assert not (tmp_path / "steps").exists()


WATCHER = f"""
import sys
from pathlib import Path
from deepsearch_rl.train.rl.watchdog import WatchdogConfig, watch
limits = WatchdogConfig(start_s=60, rollout_s=60, update_s=60, restarts=3)
watch("rl@tiny", {CHILD!r}, sys.argv[1], limits, Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_child_ends_with_its_watchdog_and_the_next_one_waits_for_that(
    watch_child: Watch, tmp_path: Path
) -> None:
    settings = {"folder": str(tmp_path), "steps": 3, "faults": [(2, "update", "hang")]}
    arguments = [sys.executable, "-c", WATCHER, json.dumps(settings), str(tmp_path)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as watchdog:
        assert watchdog.stderr is not None
        assert next(line for line in watchdog.stderr if "waiting" in line)
        watchdog.kill()
        watchdog.stderr.close()
    watch_child([])
    assert gone(tmp_path / "hanging.pid", within_s=0)
    assert steps(tmp_path) == ["1", "2", "3"]
