"""A run of the tiny profile's SFT model on veRL's Ray trainer, on a CPU, as the stage ``rl`` makes it.

python -m tests.train.verl.verl_run FOLDER grpo|ppo STEPS     # a process that a test kills
"""

import sys
from pathlib import Path

from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import Question
from deepsearch_rl.server.launch import serve_index
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask
from deepsearch_rl.train.rl.worker import rl_run, train_by_engine
from tests.train.verl.verl_settings import verl_config

START = "sft"


def settings(algorithm: str, steps: int) -> RlConfig:
    """Return GRPO with an adapter and a KL to the start, or PPO of all weights with a critic."""
    sizes = {"groups_per_step": 4, "group_size": 4, "learning_rate": 1e-3, "steps": {START: steps}}
    dev = {"every": 1, "questions": 8, "samples": 1, "temperature": 0.7}
    if algorithm == "grpo":
        return verl_config(loss={"algorithm": "grpo"}, dev=dev, **sizes)
    loss = {"algorithm": "ppo", "kl_loss": 0.0, "kl_penalty": 0.01}
    verl = {"critic": {"learning_rate": 1e-3}}
    return verl_config(loss=loss, verl=verl, lora=None, dev=dev, **sizes)


def train(folder: Path, algorithm: str, steps: int) -> None:
    """Train into ``folder/out`` with ``folder/scratch``."""
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    config = settings(algorithm, steps)
    profile = load_profile(Path("params.yaml"))
    own = profile.section("rl", RlConfig)
    run = rl_run(profile, own, START, scratch, folder / "curve.jsonl")
    setting = run.setting

    with serve_index(setting.index, setting.chunks, setting.retrieval) as url:
        task = RlTask(
            start=run.start,
            start_name=START,
            weights=run.weights,
            train=list(read_jsonl(setting.split("train"), Question)),
            dev=list(read_jsonl(setting.split("dev"), Question)),
            agent=setting.agent,
            retrieval_url=url,
            scratch=scratch,
            seed=setting.seed,
        )
        train_by_engine(task, config, folder / "out")


if __name__ == "__main__":
    train(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
