"""The loop with the engine of a few lines, as a watched process: ``python -m tests.train.rl.killed_loop PIPE``.

It is killed after a random share of ``seconds`` of processor time, unless the seed, the number of
its starts, is that of ``kills``.
"""

import random
import signal
import sys

from deepsearch_rl.core.records import Question, Record
from deepsearch_rl.train.rl.loop import train_policy
from deepsearch_rl.train.rl.rl_trainer import RlTask, RlTrainer
from deepsearch_rl.train.rl.watchdog import run_watched
from deepsearch_rl.train.rl.worker import RlRun
from tests.train.rl.tiny_trainer import TinyTrainer

QUESTIONS = [
    Question(id=f"q{n}", question=f"What is {n}?", golden_answers=(f"number {n}",))
    for n in range(7)
]


class Killed(Record):
    """A run, and how often and when it is killed."""

    run: RlRun
    kills: int
    seconds: float


def task(run: RlRun) -> RlTask:
    return RlTask(
        start=run.start,
        start_name=run.start_name,
        weights=run.weights,
        train=QUESTIONS[:5],
        dev=QUESTIONS[5:],
        agent=run.setting.agent,
        retrieval_url="http://127.0.0.1:9",
        scratch=run.scratch,
        seed=run.setting.seed,
    )


def train(settings: Killed) -> None:
    run = settings.run
    starts = run.scratch / "starts"
    count = len(starts.read_text()) if starts.exists() else 0
    starts.write_text("." * (count + 1))
    if count < settings.kills:
        signal.setitimer(signal.ITIMER_PROF, random.Random(count).uniform(0.001, settings.seconds))
    trainer: RlTrainer = TinyTrainer(run.scratch / "checkpoints")
    train_policy(task(run), run.rl, trainer, run.output)
    signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    killed = Killed.model_validate_json(sys.stdin.read())
    sys.exit(run_watched(lambda: train(killed), int(sys.argv[1])))
