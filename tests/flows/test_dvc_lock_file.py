"""dvc.lock after kills: DVC writes it in place, `flows/dvc` at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.stage_run import DVC
from tests.flows.conftest import MakeProject

pytestmark = pytest.mark.slow

NAMES = [f"stage{number}" for number in range(4)]
STAGES = {name: {"cmd": f"echo {name} > {name}.txt", "outs": [f"{name}.txt"]} for name in NAMES}
KILL_WHILE_WRITING = """
import io, os, runpy, signal, sys
from dvc.utils.serialize import _yaml

dump = _yaml._dump

def dump_half(data, stream):
    text = io.StringIO()
    dump(data, text)
    stream.write(text.getvalue()[:-90])
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)

_yaml._dump = dump_half
program, *sys.argv = sys.argv[1:]
runpy.run_module("dvc", run_name="__main__") if program == "dvc" else runpy.run_path(program, run_name="__main__")
"""


@pytest.mark.parametrize(("program", "loses"), [("dvc", True), (DVC, False)])
def test_a_kill_while_dvc_lock_is_written_loses_no_stage(
    make_project: MakeProject, program: str, loses: bool
) -> None:
    root = make_project(STAGES)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(
        [sys.executable, DVC, "repro", *NAMES[:3]], cwd=root, env=environment, check=True
    )
    before = lock_of(root)
    command = [sys.executable, "-c", KILL_WHILE_WRITING, program, "dvc", "repro", NAMES[-1]]
    killed = subprocess.run(command, cwd=root, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (lock_of(root) != before) == loses
    if not loses:
        subprocess.run(
            [sys.executable, DVC, "repro", *NAMES], cwd=root, env=environment, check=True
        )
        assert lock_of(root).keys() == set(NAMES)
        assert (root / "dvc.lock").stat().st_mode & 0o777 == 0o666 & ~umask()


def test_dvc_lock_has_the_bytes_that_dvc_writes(make_project: MakeProject) -> None:
    # DVC folds a long line
    long = f"echo {'a ' * 60}> stage0.txt"
    root = make_project({**STAGES, NAMES[0]: {**STAGES[NAMES[0]], "cmd": long}})
    by_dvc = [sys.executable, "-m", "dvc", "repro", "--force"]
    subprocess.run([*by_dvc, *NAMES], cwd=root, check=True)
    expected = (root / "dvc.lock").read_bytes()

    for names in (NAMES[:2], NAMES[2:]):
        subprocess.run([sys.executable, DVC, "repro", "--force", *names], cwd=root, check=True)
        assert (root / "dvc.lock").read_bytes() == expected

    (root / "dvc.lock").unlink()
    for name in NAMES:
        subprocess.run([sys.executable, DVC, "repro", name], cwd=root, check=True)
    assert (root / "dvc.lock").read_bytes() == expected


def lock_of(root: Path) -> dict[str, object]:
    try:
        return yaml.safe_load((root / "dvc.lock").read_text())["stages"]
    except yaml.YAMLError:
        return {}


def umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now
