"""sft: a LoRA on the teacher's successful trajectories, trained by ms-swift."""

from deepsearch_rl.profile import Profile
from deepsearch_rl.training.sft import SftConfig, train_adapter
from stages.entry import run
from stages.followed import followed


def main(profile: Profile) -> None:
    """Write ``models/<profile>/sft_adapter/``."""
    config = profile.section("sft", SftConfig)
    rows = profile.data / "sft" / "train.jsonl"
    train_adapter(
        config, profile.models / "base", rows, profile.value("seed"), profile.work, profile.models / "sft_adapter"
    )


if __name__ == "__main__":
    run(followed(main))
