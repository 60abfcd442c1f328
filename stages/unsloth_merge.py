"""Merge an RL adapter into its start model and prove that nothing was lost: `python -m stages.unsloth_merge P sft`."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage_entry import run
from deepsearch_rl.training.merging.merge import AdapterMergeConfig, merge_rl_adapter


def main(profile: Profile, item: str) -> None:
    """Write ``models/<profile>/rl_merged/<start>/``."""
    config = profile.section("unsloth_merge", AdapterMergeConfig)
    models = profile.models
    start = models / item
    adapter = models / "rl_adapter" / item
    merge_rl_adapter(config, start, adapter, models / "rl_merged" / item)


if __name__ == "__main__":
    run(main)
