"""The training process of the stage, which kills one of its processes at each of its first three starts.

It is the retrieval server, then the process that trains and serves the policy, then itself, each time between rollouts
and update. An untrained policy answers nothing, so the reward is one that differs between its rollouts.
"""

import sys
from pathlib import Path

import psutil

from deepsearch_rl.records import Trajectory
from deepsearch_rl.training import rl_worker
from deepsearch_rl.training.rl import loop
from deepsearch_rl.training.rl.heartbeat import Phase, begin, run_watched
from deepsearch_rl.training.rl_worker import RlRun

VICTIMS = [(1, "retrieval.server.launch"), (1, "multiprocessing.spawn"), (2, "killed_art")]
"""The step in which a process is killed, and what its command line has, by the number of the start."""


def reward(_weights: object, trajectory: Trajectory, *_: object) -> dict[str, float]:
    return {"letters": float(len(trajectory.messages[-1].content) % 5)}


def kill_before_update(starts: Path) -> None:
    """Note this start and patch the loop, which then kills this start's victim."""
    count = len(starts.read_text()) if starts.exists() else 0
    starts.write_text("." * (count + 1))

    def begin_or_kill(phase: Phase, step: int) -> None:
        if count < len(VICTIMS) and (step, phase) == (VICTIMS[count][0], "update"):
            this = psutil.Process()
            for process in (*this.children(recursive=True), this):
                if VICTIMS[count][1] in " ".join(process.cmdline()):
                    process.kill()
                    process.wait() if process != this else None
        begin(phase, step)

    loop.begin = begin_or_kill


if __name__ == "__main__":
    work = RlRun.model_validate_json(sys.stdin.read())
    loop.reward_parts = reward
    kill_before_update(work.scratch / "starts")
    sys.exit(run_watched(lambda: rl_worker.train(work), int(sys.argv[1])))
