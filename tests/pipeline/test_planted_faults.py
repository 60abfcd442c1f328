"""The parts of the fault suite; every night all of it.

What of it every run of the tests does stands in test_smoke.py, which has a finished graph.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.findings import NEW_START, RECORDER, verdict
from tests.pipeline.finished_graph import Run
from tests.pipeline.planting import CannotPlantError, with_fault_in_function, with_fault_in_module

SOURCE = '''"""A module."""

from __future__ import annotations

import functools


def plain(number: int) -> int:
    return number


class Shape:
    @functools.cached_property
    def area(self) -> float:
        """Return the area."""
        return 1.0

    def nothing(self) -> None:
        """Do nothing."""


async def outer() -> None:
    @functools.cache
    def inner() -> None:
        pass

    inner()


def short() -> None: ...
'''


def line_of(name: str) -> int:
    return next(
        number for number, line in enumerate(SOURCE.splitlines(), start=1) if f"def {name}(" in line
    )


@pytest.mark.parametrize(
    "call",
    ["plain(1)", "Shape().area", "Shape().nothing()", "__import__('asyncio').run(outer())"],
)
def test_a_function_with_a_fault_raises_and_the_others_do_not(call: str) -> None:
    names = ["plain", "area", "nothing", "outer"]
    for name in names:
        module: dict[str, object] = {}
        exec(with_fault_in_function(SOURCE, line_of(name)), module)
        if name in call:
            with pytest.raises(RuntimeError, match="planted fault"):
                eval(call, module)
        else:
            eval(call, module)


def test_a_function_within_a_function_can_have_a_fault_and_one_of_a_single_line_cannot() -> None:
    module: dict[str, object] = {}
    exec(with_fault_in_function(SOURCE, line_of("inner")), module)
    with pytest.raises(RuntimeError, match="planted fault"):
        eval("__import__('asyncio').run(outer())", module)
    with pytest.raises(CannotPlantError, match="short"):
        with_fault_in_function(SOURCE, line_of("short"))


@pytest.mark.parametrize("text", [SOURCE, '"""Only a docstring."""\n', "x = 1\n", ""])
def test_a_module_with_a_fault_cannot_be_imported(text: str) -> None:
    with pytest.raises(RuntimeError, match="planted fault"):
        exec(compile(with_fault_in_module(text), "module.py", "exec"), {})


@pytest.mark.slow
def test_the_recorder_notes_calls_of_the_program_and_its_children_but_not_those_of_imports(
    tmp_path: Path,
) -> None:
    package = tmp_path / "stages"
    package.mkdir()
    (package / "library.py").write_text(
        "def at_import(): pass\n\nclass Reader:\n    def read(self):\n        yield 1\n\nat_import()\n"
    )
    (package / "child.py").write_text(
        "import os\n\ndef main():\n    os.kill(os.getpid(), 9)\n\nmain()\n"
    )
    (package / "stage.py").write_text(
        "import subprocess, sys\nfrom stages.library import Reader\n\n"
        "def main():\n    list(Reader().read())\n    list(Reader().read())\n"
        "    subprocess.run([sys.executable, '-m', 'stages.child'])\n\n"
        "def uncalled(): pass\n\nif __name__ == '__main__':\n    main()\n"
    )
    log = tmp_path / "calls.txt"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{RECORDER}",
        "DEEPSEARCH_CALLS": str(log),
    }
    for _ in range(2):  # also where Python has compiled the modules already
        log.unlink(missing_ok=True)
        subprocess.run(
            [sys.executable, "-m", "stages.stage"], cwd=tmp_path, env=environment, check=True
        )
        assert log.read_text().splitlines() == [
            "stages/stage.py:4:main",
            "stages/library.py:4:Reader.read",
            "stages/child.py:3:main",
        ]


RAN = "Running stage 'profiles/smoke/dvc.yaml:chunk':\n"


@pytest.mark.parametrize(
    ("ended", "after", "ending", "is_survivor"),
    [
        (Run(0, "Stage 'chunk' didn't change, skipping"), "old", "DID NOT RUN", True),
        (
            Run(0, f"Stage 'chunk' is cached - skipping run, checking out outputs\n{RAN}"),
            "old",
            "DID NOT RUN",
            True,
        ),
        (Run(0, RAN), "old", "SUCCESS with the same outputs", True),
        (Run(0, RAN), "new", "other outputs: data", False),
        (Run(0, f"{RAN}planted fault. {NEW_START} (1 of 3)."), "old", "the same", False),
        (Run(0, f"{RAN}warning: planted fault"), "old", "SUCCESS with the same outputs", True),
        (Run(1, f"{RAN}RuntimeError: planted fault"), "old", "failed", False),
        (Run(1, f"{RAN}error: no such file"), "old", "failed: error: no such file", False),
        (Run(1, "ERROR: failed to lock"), "old", "DID NOT RUN", True),
    ],
)
def test_a_fault_survives_where_nothing_runs_or_nothing_differs(
    ended: Run, after: str, ending: str, is_survivor: bool
) -> None:
    words, survives = verdict(ended, {"data": "old"}, {"data": after})
    assert words.startswith(ending)
    assert survives == is_survivor


@pytest.mark.nightly
@pytest.mark.timeout(4 * 3600)
def test_no_fault_kill_or_edit_survives_in_any_stage(finished: Path) -> None:
    command = [sys.executable, "-m", "tests.pipeline.planted_faults", str(finished)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
