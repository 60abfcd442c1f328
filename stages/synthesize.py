"""Let the teacher answer the training questions."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.scratch import Scratch
from deepsearch_rl.trajectories.collecting.rollout_setting import RolloutSetting
from deepsearch_rl.trajectories.synthesis.synthesize import (
    ServedTeacher,
    SynthesizeConfig,
    synthesize,
)
from stages.running.entry import run


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``data/<profile>/trajectories/teacher.jsonl``."""
    answer(profile, scratch)


def answer(profile: Profile, scratch: Scratch, served: ServedTeacher | None = None) -> None:
    """Write the answers of the profile's teacher, which is ``served`` where it is the model itself.

    Where a server failed some of them, the others are kept, and a repeated run asks for those
    alone.
    """
    config = profile.section("synthesize", SynthesizeConfig)
    setting = RolloutSetting.of(profile, config.dataset)
    out = profile.data / "trajectories" / "teacher.jsonl"
    if synthesize(config, setting, out, scratch.path, served).server_failures:
        scratch.keep()


if __name__ == "__main__":
    run(main)
