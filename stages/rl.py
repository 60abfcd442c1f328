"""Reinforcement learning from one start model: `python -m stages.rl params.yaml sft`."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Scratch, Stage, run
from deepsearch_rl.train.curves import followed
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.worker import require_engine, rl_run, train_watched

STAGE = Stage(
    sections=("seed", "rl", "agent", "retrieval", "datasets"),
    packages=(
        "core",
        "data",
        "chat",
        "search",
        "server",
        "serve",
        "agent",
        "environment",
        "train",
    ),
    inputs=(
        "models/{profile}/{item}",
        "{agent.prompt}",
        "data/{profile}/index",
        "data/{profile}/chunks",
        "data/{profile}/questions",
    ),
)


def main(profile: Profile, item: str, scratch: Scratch) -> None:
    """Train from ``models/<profile>/<item>`` into ``models/<profile>/rl_adapter/<item>``."""
    config = profile.section("rl", RlConfig)
    require_engine(config.backend)
    train_watched(rl_run(profile, config, item, scratch.path, scratch.curve))


if __name__ == "__main__":
    run(STAGE, followed(main))
