"""sft: a LoRA on the teacher's successful trajectories, trained by ms-swift."""

import re

from deepsearch_rl.errors import ConfigError
from deepsearch_rl.profile import Profile
from deepsearch_rl.training.sft import SftConfig, train_adapter
from stages.entry import run
from stages.followed import followed


def main(profile: Profile) -> None:
    """Write ``models/<profile>/sft_adapter/``, with all checkpoints where `stages.sft_dev` is to choose one."""
    config, graph = profile.section("sft", SftConfig), profile.path.with_name("dvc.yaml")
    command = r"^ *cmd:.* stages\.sft_dev "
    asks_dev = graph.exists() and re.search(command, graph.read_text(), re.MULTILINE) is not None
    if graph.exists() and asks_dev != (config.checkpoint == "dev"):
        raise ConfigError(
            f"sft.checkpoint is {config.checkpoint!r}, but the stage sft of {graph} asks "
            f"{'the' if asks_dev else 'no'} dev questions: set it in profile.yaml (of tiny: "
            "src/deepsearch_rl/presets/tiny.yaml) and run `make params deps`."
        )
    rows = profile.data / "sft" / "train.jsonl"
    train_adapter(
        config, profile.models / "base", rows, profile.value("seed"), profile.work, profile.models / "sft_adapter"
    )


if __name__ == "__main__":
    run(followed(main))
