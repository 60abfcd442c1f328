"""merge: the SFT adapter into its base model."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run
from deepsearch_rl.train.merge import merge_adapter
from deepsearch_rl.train.merge_config import MergeConfig

STAGE = Stage(
    sections=("merge",),
    packages=("core", "chat", "data", "search", "agent", "train"),
    inputs=("models/{profile}/base", "models/{profile}/sft_adapter"),
)


def main(profile: Profile) -> None:
    """Write ``models/<profile>/sft/``."""
    config = profile.section("merge", MergeConfig)
    models = profile.models
    work = profile.work / "merge"
    merge_adapter(config, models / "base", models / "sft_adapter", work, models / "sft")


if __name__ == "__main__":
    run(STAGE, main)
