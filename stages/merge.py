"""merge: the SFT adapter into its base model."""

from deepsearch_rl.training.merge import MergeConfig, merge_adapter
from stages.entry import Params, run


def main(params: Params) -> None:
    """Write ``models/<profile>/sft/``."""
    config, models = params.section("merge", MergeConfig), params.models
    merge_adapter(config, models / "base", models / "sft_adapter", params.work, models / "sft")


if __name__ == "__main__":
    run(main)
