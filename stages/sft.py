"""sft: a LoRA on the teacher's successful trajectories, trained by ms-swift."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Scratch, Stage, run
from deepsearch_rl.train.curves import followed, recorded_curve
from deepsearch_rl.train.sft import SftConfig, train_adapter

STAGE = Stage(
    sections=("seed", "sft"),
    packages=("core", "chat", "train"),
    inputs=("data/{profile}/sft", "models/{profile}/base"),
)


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``models/<profile>/sft_checkpoints/``."""
    config = profile.section("sft", SftConfig)
    rows = profile.data / "sft" / "train.jsonl"
    base = profile.models / "base"
    checkpoints = profile.models / "sft_checkpoints"
    with recorded_curve(scratch.curve):
        train_adapter(config, base, rows, profile.value("seed"), scratch.path, checkpoints)


if __name__ == "__main__":
    run(STAGE, followed(main))
