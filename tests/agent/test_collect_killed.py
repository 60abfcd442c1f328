"""A collection that is killed with -9 again and again: nothing is lost, nothing is made twice, and no one can tell."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deepsearch_rl.core.records import Trajectory
from tests.agent.scripted import ANNOUNCEMENT_BYTES, CONCURRENCY, SAMPLES

PIPE_BYTES = 4096
"""The kernel's smallest pipe: so far, 64 announcements, a child can run ahead of what the test has read."""


@pytest.fixture
def start(root: Path, tmp_path: Path):
    """Starts a real ``collect`` in a process of its own, with the given log and artifact."""

    def run(log: Path, out: Path, questions: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "tests.agent.scripted",
            str(log),
            str(out),
            str(questions),
        ]
        errors = (tmp_path / "errors.txt").open("ab")
        with errors:
            return subprocess.Popen(
                command, cwd=root, stdout=subprocess.PIPE, stderr=errors, pipesize=PIPE_BYTES
            )

    return run


def announced(process: subprocess.Popen[bytes], kill_after: int | None = None) -> list[str]:
    """The rollouts that a child begins; it is killed once it has begun ``kill_after``."""
    assert process.stdout
    with process.stdout as lines:
        begun = [lines.read(ANNOUNCEMENT_BYTES) for _ in range(kill_after or 0)]
        if kill_after is not None:
            os.kill(process.pid, signal.SIGKILL)
        begun += iter(lambda: lines.read(ANNOUNCEMENT_BYTES), b"")
    assert process.wait() == (0 if kill_after is None else -signal.SIGKILL)
    return [line.decode().strip() for line in begun if line]


def whole_lines(path: Path) -> list[str]:
    """The rollouts whose lines are whole, one entry per line."""
    whole = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return [Trajectory.model_validate_json(line).id for line in whole]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_at_random_points_loses_nothing_repeats_nothing_and_ends_in_the_same_bytes(
    start, tmp_path: Path, seed: int
):
    rng = random.Random(seed)
    log, out, undisturbed = (
        tmp_path / "work" / "log.jsonl",
        tmp_path / "out.jsonl",
        tmp_path / "undisturbed.jsonl",
    )
    questions = 400
    wanted = questions * SAMPLES
    assert (
        len(announced(start(tmp_path / "work" / "other.jsonl", undisturbed, questions))) == wanted
    )

    begun = 0
    kills = 6
    for _ in range(kills):
        kept = set(whole_lines(log))
        made = announced(start(log, out, questions), kill_after=rng.randint(1, 60))
        assert kept.isdisjoint(made), "what was whole in the log is not made again"
        assert kept <= set(whole_lines(log)), "what was whole in the log stays"
        assert len(set(made) - set(whole_lines(log))) <= CONCURRENCY, (
            "only what was in flight is lost"
        )
        begun += len(made)
        assert not out.exists(), "an artifact is whole or not there"
        # As if the power, and not the process, had failed in the middle of a line
        if rng.random() < 0.5:
            with log.open("ab") as file:
                line = rng.choice(undisturbed.read_bytes().splitlines())
                file.write(line[: rng.randrange(1, len(line))])
    begun += len(announced(start(log, out, questions)))

    assert len(set(whole_lines(log))) == len(whole_lines(log)) == wanted
    assert sorted(whole_lines(log)) == sorted(whole_lines(out))
    assert wanted <= begun <= wanted + kills * CONCURRENCY, (
        "at most what was in flight is made again"
    )
    assert out.read_bytes() == undisturbed.read_bytes()


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_stopped(start, tmp_path: Path):
    log, out = tmp_path / "log.jsonl", tmp_path / "out.jsonl"
    made = announced(start(log, out, 100), kill_after=50)
    kept = whole_lines(log)
    assert 50 - CONCURRENCY <= len(kept) <= len(made) < 200
    assert sorted([*kept, *announced(start(log, out, 100))]) == sorted(whole_lines(log))
    assert len(out.read_bytes().splitlines()) == 200
