"""sft: a LoRA on the teacher's successful trajectories, trained by ms-swift."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.scratch import Scratch
from deepsearch_rl.training.runs.curves import recorded_curve
from deepsearch_rl.training.sft.train import SftConfig, train_adapter
from stages.running.entry import run
from stages.running.followed import followed


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``models/<profile>/sft_adapter/``, with all checkpoints where `stages.sft_dev` is to choose one."""
    config = profile.section("sft", SftConfig)
    rows = profile.data / "sft" / "train.jsonl"
    base = profile.models / "base"
    adapter = profile.models / "sft_adapter"
    with recorded_curve(scratch.curve):
        train_adapter(config, base, rows, profile.value("seed"), scratch.path, adapter)
    if config.checkpoint == "dev":
        # The stage goes on in `stages.sft_dev`; until that has ended, nothing has to be trained
        # again
        scratch.keep()


if __name__ == "__main__":
    run(followed(main))
