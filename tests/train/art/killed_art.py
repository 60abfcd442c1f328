"""The worker of stage rl, of which a process is killed: ``python -m tests.train.art.killed_art PIPE``.

Nothing else differs from :mod:`deepsearch_rl.train.rl.worker`.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Literal

import psutil

from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.core.records import Question, Record, Trajectory
from deepsearch_rl.train.rl import loop
from deepsearch_rl.train.rl.watchdog import Phase, begin, run_watched
from deepsearch_rl.train.rl.worker import RlRun, train

Victim = Literal["retrieval server", "policy", "worker"]
COMMANDS = {
    "retrieval server": ("-m", "deepsearch_rl.server.launch"),
    "policy": ("-c", "from multiprocessing.spawn"),
}
"""A switch of the interpreter that runs a child of the worker, and how the switch's value begins."""


class Kill(Record):
    """A kill -9 in a phase of a step: when so many of the phase's rollouts have ended, or as it begins."""

    victim: Victim
    step: int
    phase: Phase
    rollouts: int = 0

    def strike(self) -> None:
        """Kill the victim; wait for nothing, since a process whose end another one has read does not end for ART."""
        if self.victim == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        switch, value = COMMANDS[self.victim]
        for process in psutil.Process().children(recursive=True):
            command = process.cmdline()
            if switch in command[:3] and command[command.index(switch) + 1].startswith(value):
                process.kill()


class Killed(Record):
    """A run and its kills, one for each of its first starts."""

    run: RlRun
    kills: tuple[Kill, ...]


def starts(scratch: Path) -> list[int]:
    """Return the first step that each start of a run made."""
    notes = scratch / "starts"
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []


def prepare(killed: Killed) -> None:
    """Patch the loop so that it notes this start, and loop and agent so that the start's kill happens at its place."""
    scratch, answer = killed.run.scratch, SearchAgent.answer
    kill = next(iter(killed.kills[len(starts(scratch)) :]), None)
    finished: list[str] = []
    is_due = False

    def begin_and_strike(phase: Phase, step: int) -> None:
        nonlocal is_due
        begin(phase, step)
        if phase == "start":
            with (scratch / "starts").open("a") as notes:
                notes.write(f"{step}\n")
        is_due = kill is not None and (step, phase) == (kill.step, kill.phase)
        if kill is not None and is_due and not kill.rollouts:
            kill.strike()

    async def answer_and_strike(self: SearchAgent, question: Question, sample: int) -> Trajectory:
        trajectory = await answer(self, question, sample)
        if kill is not None and is_due:
            finished.append(trajectory.id)
            if len(finished) == kill.rollouts:
                kill.strike()
        return trajectory

    loop.begin, SearchAgent.answer = begin_and_strike, answer_and_strike


if __name__ == "__main__":
    settings = Killed.model_validate_json(sys.stdin.buffer.read())
    prepare(settings)
    sys.exit(run_watched(lambda: train(settings.run), int(sys.argv[1])))
