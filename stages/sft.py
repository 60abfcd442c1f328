"""sft: a LoRA on the teacher's successful trajectories, trained by ms-swift."""

from deepsearch_rl.profile import Profile
from deepsearch_rl.training.sft import SftConfig, train_adapter
from stages.entry import run
from stages.followed import followed


def main(profile: Profile) -> None:
    """Write ``models/<profile>/sft_adapter/``, with all checkpoints where `stages.sft_dev` is to choose one."""
    config, models = profile.section("sft", SftConfig), profile.models
    rows, seed = profile.data / "sft" / "train.jsonl", profile.value("seed")
    train_adapter(config, models / "base", rows, seed, profile.work, models / "sft_adapter")


if __name__ == "__main__":
    run(followed(main))
