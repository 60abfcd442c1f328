"""Choose SFT's checkpoint by rollouts on dev questions: the end of the stage `sft` where `sft.checkpoint` is `dev`."""

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.scratch import Scratch
from deepsearch_rl.serving.launch import ServingConfig
from deepsearch_rl.training.runs.curves import recorded_curve
from deepsearch_rl.training.sft.dev import DevRollouts, choose_on_dev
from deepsearch_rl.training.sft.train import SftConfig
from deepsearch_rl.trajectories.collecting.rollout_setting import RolloutSetting
from stages.running.entry import run
from stages.running.followed import followed


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``models/<profile>/sft_adapter/`` again, with one of its checkpoints."""
    config = profile.section("sft", SftConfig)
    serving = profile.section("serving", ServingConfig)

    if config.checkpoint != "dev":
        raise ConfigError(
            f"sft.checkpoint is {config.checkpoint!r}, but the stage sft of this graph asks the dev questions: set it "
            "in profile.yaml (of tiny: src/deepsearch_rl/presets/tiny.yaml) and run `make params deps`."
        )

    rollouts = DevRollouts(config.dev, RolloutSetting.of(profile, config.dev.dataset), serving)
    with recorded_curve(scratch.curve):
        choose_on_dev(rollouts, profile.models / "sft_adapter", scratch.path / "dev")


if __name__ == "__main__":
    run(followed(main), "sft", is_continued=True)
