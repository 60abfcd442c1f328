"""Let the teacher answer the training questions."""

from deepsearch_rl.profile import Profile
from deepsearch_rl.trajectories.rollout_setting import RolloutSetting
from deepsearch_rl.trajectories.synthesize import ServedTeacher, SynthesizeConfig, synthesize
from stages.entry import run


def main(profile: Profile) -> None:
    """Write ``data/<profile>/trajectories/teacher.jsonl``."""
    answer(profile)


def answer(profile: Profile, served: ServedTeacher | None = None) -> None:
    """Write the answers of the profile's teacher, which is ``served`` where it is the model itself."""
    config = profile.section("synthesize", SynthesizeConfig)
    setting = RolloutSetting.of(profile, config.dataset)
    synthesize(config, setting, profile.data / "trajectories" / "teacher.jsonl", served)


if __name__ == "__main__":
    run(main)
