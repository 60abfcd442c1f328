"""unsloth_merge: an RL adapter into the model that RL started from: `python -m stages.unsloth_merge P sft`."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run
from deepsearch_rl.train.merge import merge_adapter
from deepsearch_rl.train.merge_config import MergeConfig

STAGE = Stage(
    sections=("unsloth_merge",),
    packages=("core", "chat", "data", "search", "agent", "train"),
    inputs=("models/{profile}/{item}", "models/{profile}/rl_adapter/{item}"),
)


def main(profile: Profile, item: str) -> None:
    """Write ``models/<profile>/rl_merged/<start>/``."""
    config = profile.section("unsloth_merge", MergeConfig)
    models = profile.models
    work = profile.work / "unsloth_merge" / item
    merge_adapter(
        config, models / item, models / "rl_adapter" / item, work, models / "rl_merged" / item
    )


if __name__ == "__main__":
    run(STAGE, main)
