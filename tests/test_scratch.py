"""A scratch folder belongs to one state: a killed run resumes under that state, and under no other."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from deepsearch_rl.core.scratch import DAY_S, KEPT_DAYS, Scratch, open_scratch, unfinished
from deepsearch_rl.core.stage_state import StageState

WORK = Path("work", "tiny")


class KilledError(Exception):
    """Stands for a kill: what a run would do after it is not done."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def state(**code: str) -> StageState:
    return StageState(stage="rl@sft", code=code, params={}, data={})


def killed_run(of: StageState, files: Mapping[str, str], *, changed: bool = False) -> Scratch:
    """Leave a run's files behind."""
    scratches: list[Scratch] = []

    def run() -> None:
        with open_scratch(WORK, of, "rl-sft", afresh=False) as scratch:
            scratches.append(scratch)
            for name, text in files.items():
                (scratch.path / name).write_text(text)
            if changed:
                scratch.mark_changed()
            raise KilledError

    with pytest.raises(KilledError):
        run()
    return scratches[0]


def files_of_next_run(of: StageState, *, afresh: bool = False) -> set[str]:
    with open_scratch(WORK, of, "rl-sft", afresh) as scratch:
        return {path.name for path in scratch.path.iterdir()} - {"state.json"}


def test_a_killed_run_resumes_and_a_finished_one_leaves_nothing() -> None:
    killed_run(state(a="1"), {"log": "3 steps"})
    assert files_of_next_run(state(a="1")) == {"log"}
    assert unfinished(WORK) == []
    assert files_of_next_run(state(a="1")) == set()


def test_another_state_starts_anew_and_one_line_says_what_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    killed_run(state(**{"src/loss.py": "1", "src/agent.py": "1"}), {"log": "3 steps"})
    assert files_of_next_run(state(**{"src/loss.py": "2", "src/agent.py": "1"})) == set()
    assert caplog.messages == [
        "rl@sft starts anew and does not resume its earlier run: src/loss.py (changed)"
    ]
    caplog.clear()
    assert files_of_next_run(state(**{"src/loss.py": "1", "src/agent.py": "1"})) == {"log"}, (
        "put back as it was"
    )
    assert caplog.messages == []


def test_what_was_written_while_inputs_changed_is_not_resumed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    killed_run(state(a="1"), {"log": "3 steps"}, changed=True)
    assert files_of_next_run(state(a="1")) == set()
    assert caplog.messages == ["rl@sft starts anew: its inputs changed during the unfinished run"]


def test_a_forced_run_begins_with_nothing() -> None:
    killed_run(state(a="1"), {"log": "3 steps"})
    assert files_of_next_run(state(a="1"), afresh=True) == set()


def test_a_run_may_leave_its_folder_to_another_program() -> None:
    with open_scratch(WORK, state(a="1"), "sft", afresh=False) as scratch:
        (scratch.path / "checkpoint").touch()
        scratch.keep()
    assert unfinished(WORK) == [scratch.path]
    assert files_of_next_run(state(a="1")) == {"checkpoint"}


def test_what_nobody_has_resumed_for_weeks_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    old = killed_run(state(a="old"), {"log": "3 steps"}).path
    newer = killed_run(state(a="newer"), {"log": "3 steps"}).path
    for path in (*old.iterdir(), old):
        then = path.stat().st_mtime - (KEPT_DAYS + 1) * DAY_S
        os.utime(path, (then, then))
    files_of_next_run(state(a="now"))
    assert unfinished(WORK) == [newer]


def test_the_curve_is_named_by_program_and_state() -> None:
    scratch = killed_run(state(a="1"), {})
    assert scratch.curve == WORK / "curves" / f"rl-sft-{scratch.path.name}.jsonl"
