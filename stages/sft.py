"""sft: a LoRA on the teacher's successful trajectories, trained by ms-swift."""

from deepsearch_rl.training.sft import SftConfig, train_adapter
from stages.entry import Params, run


def main(params: Params) -> None:
    """Write ``models/<profile>/sft_adapter/``."""
    config = params.section("sft", SftConfig)
    rows = params.data / "sft" / "train.jsonl"
    train_adapter(
        config, params.models / "base", rows, params.value("seed"), params.work, params.models / "sft_adapter"
    )


if __name__ == "__main__":
    run(main)
