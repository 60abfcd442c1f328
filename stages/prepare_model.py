"""prepare_model: the base model, trained from scratch (tiny) or a hub snapshot at a pinned revision (gpu)."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.scratch import Scratch
from deepsearch_rl.core.stage_entry import ROOT, run
from deepsearch_rl.core.stage_graph import require_data
from deepsearch_rl.toy.prepare_model import PrepareModelConfig, prepare_model
from deepsearch_rl.train.curves import recorded_curve
from deepsearch_rl.train.followed import followed


def main(profile: Profile, scratch: Scratch) -> None:
    """Write models/<profile>/base."""
    config = profile.section("prepare_model", PrepareModelConfig)
    seed = profile.value("seed")
    prompt = profile.value("agent.prompt")
    if config.source == "pretrain":
        require_data(profile, "prepare_model", [prompt], ROOT)
    with recorded_curve(scratch.curve):
        prepare_model(config, prompt, seed, profile.models / "base")


if __name__ == "__main__":
    run(followed(main))
