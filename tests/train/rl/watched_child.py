"""A watched process that counts steps in a file and fails where it is told to: ``python -m ... PIPE``.

Its settings are ``{"folder": ..., "steps": ..., "faults": [[step, phase, fault], ...]}``. Each
fault happens once; a fault is the name of an action below, or the text of an error.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from deepsearch_rl.core.errors import ConfigError, EndpointError, LostProcessError
from deepsearch_rl.train.finite import NotFiniteError
from deepsearch_rl.train.rl.watchdog import Phase, begin, check_server, run_watched


def hang() -> None:
    """Wait for a program in a session of its own."""
    subprocess.run(
        ["setsid", "sh", "-c", "echo $$ > hanging.pid; echo waiting; exec sleep 600"], check=True
    )


def refuse() -> None:
    raise ConfigError("rl.steps has no entry; add one.")


def fail_as_a_server() -> None:
    raise EndpointError("vLLM ended with status 2.")


def diverge() -> None:
    raise NotFiniteError("the update was not applied: its loss is nan.")


def lose_a_worker() -> None:
    raise LostProcessError("veRL's trainer ended with exit code 1.")


def lose_a_server() -> None:
    check_server("the policy's server", "http://127.0.0.1:9/health")
    begin("save", 0)


ACTIONS = {
    "hang": hang,
    "be killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(7),
    "refuse": refuse,
    "fail as a server": fail_as_a_server,
    "lose a server": lose_a_server,
    "diverge": diverge,
    "lose a worker": lose_a_worker,
}


def work(folder: Path, steps: int, faults: list[tuple[int, str, str]]) -> None:
    """Write one line per step, after those that are there."""
    os.chdir(folder)
    log, happened = Path("steps"), Path("happened")

    def maybe_fail(step: int, phase: Phase) -> None:
        begin(phase, step)
        count = happened.read_text().count("\n") if happened.exists() else 0
        if count < len(faults) and (step, phase) == tuple(faults[count][:2]):
            with happened.open("a") as noted:
                noted.write(f"{faults[count][2]}\n")
            if action := ACTIONS.get(faults[count][2]):
                action()
            else:
                raise RuntimeError(faults[count][2])

    done = len(log.read_text().splitlines()) if log.exists() else 0
    maybe_fail(done + 1, "start")
    for step in range(done + 1, steps + 1):
        sys.stderr.write(f"step {step}\n")
        maybe_fail(step, "roll out")
        maybe_fail(step, "update")
        with log.open("a") as lines:
            lines.write(f"{step}\n")


if __name__ == "__main__":
    settings = json.loads(sys.stdin.read())
    sys.exit(
        run_watched(
            lambda: work(**{**settings, "folder": Path(settings["folder"])}), int(sys.argv[1])
        )
    )
