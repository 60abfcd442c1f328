"""Let the teacher answer the training questions."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.scratch import Scratch
from deepsearch_rl.core.stage_entry import run
from deepsearch_rl.serving.launch import ServingConfig
from deepsearch_rl.trajectories.collecting.rollout_setting import RolloutSetting
from deepsearch_rl.trajectories.synthesis.synthesize import SynthesizeConfig, synthesize


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``data/<profile>/trajectories/teacher.jsonl``.

    Where a server failed some answers, the others are kept, and a repeated run asks for those
    alone.
    """
    config = profile.section("synthesize", SynthesizeConfig)
    serving = profile.section("serving", ServingConfig)
    setting = RolloutSetting.of(profile, config.dataset)
    out = profile.data / "trajectories" / "teacher.jsonl"
    if synthesize(config, setting, serving, out, scratch.path).server_failures:
        scratch.keep()


if __name__ == "__main__":
    run(main)
