"""Merge an RL adapter into its start model and prove that nothing was lost: `python -m stages.unsloth_merge P sft`."""

from deepsearch_rl.training.adapter_merge import AdapterMergeConfig, merge_rl_adapter
from stages.entry import Params, run


def main(params: Params) -> None:
    """Write ``models/<profile>/rl_merged/<start>/``."""
    config, models = params.section("unsloth_merge", AdapterMergeConfig), params.models
    start, adapter = models / params.item, models / "rl_adapter" / params.item
    merge_rl_adapter(config, start, adapter, models / "rl_merged" / params.item)


if __name__ == "__main__":
    run(main)
