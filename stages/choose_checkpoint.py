"""Choose which of SFT's checkpoints goes on: the last, or the best by loss or by rollouts on dev questions."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Scratch, Stage, run
from deepsearch_rl.train.choose_checkpoint import (
    ChooseCheckpointConfig,
    choose_without_rollouts,
)
from deepsearch_rl.train.curves import followed, recorded_curve

STAGE = Stage(
    sections=("seed", "choose_checkpoint", "agent", "retrieval", "serving", "datasets"),
    packages=("core", "data", "chat", "search", "server", "serve", "agent", "train"),
    inputs=(
        "models/{profile}/sft_checkpoints",
        "models/{profile}/base",
        "{agent.prompt}",
        "data/{profile}/index",
        "data/{profile}/chunks",
        "data/{profile}/questions",
    ),
)


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``models/<profile>/sft_adapter/``."""
    config = profile.section("choose_checkpoint", ChooseCheckpointConfig)
    if config.by == "dev":
        followed(_choose_on_dev)(profile, config, scratch)
        return

    models = profile.models
    choose_without_rollouts(
        config.by, config.interpolation, models / "sft_checkpoints", models / "sft_adapter"
    )


def _choose_on_dev(profile: Profile, config: ChooseCheckpointConfig, scratch: Scratch) -> None:
    from deepsearch_rl.agent.collect import RolloutSetting  # noqa: PLC0415
    from deepsearch_rl.serve.launch import ServingConfig  # noqa: PLC0415 - with the agent's libraries, seconds
    from deepsearch_rl.train.choose_on_dev import DevRollouts, choose_on_dev  # noqa: PLC0415

    serving = profile.section("serving", ServingConfig)
    setting = RolloutSetting.of(profile, config.dev.dataset)
    rollouts = DevRollouts(config.dev, config.interpolation, setting, serving)
    models = profile.models
    with recorded_curve(scratch.curve):
        choose_on_dev(rollouts, models / "sft_checkpoints", models / "sft_adapter", scratch.path)


if __name__ == "__main__":
    run(STAGE, main)
