"""prepare_model: the base model, trained from scratch (tiny) or a hub snapshot at a pinned revision (gpu)."""

from deepsearch_rl.training.pretrain.prepare import PrepareModelConfig, prepare_model
from stages.entry import Params, run


def main(params: Params) -> None:
    """Write models/<profile>/base."""
    config = params.section("prepare_model", PrepareModelConfig)
    prepare_model(config, params.value("seed"), params.models / "base")


if __name__ == "__main__":
    run(main)
