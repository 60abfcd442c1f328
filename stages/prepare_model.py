"""prepare_model: the base model, trained from scratch (tiny), of a local folder, or of a hub at a pinned revision."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Scratch, Stage, run
from deepsearch_rl.train.curves import followed, recorded_curve
from deepsearch_rl.train.prepare_model import PrepareModelConfig, prepare_model

STAGE = Stage(
    sections=("seed", "prepare_model", "agent.prompt"),
    packages=("core", "chat", "toy", "train"),
    inputs=("{agent.prompt}", "{prepare_model.path?}", "{prepare_model.chat_template?}"),
)


def main(profile: Profile, scratch: Scratch) -> None:
    """Write models/<profile>/base."""
    config = profile.section("prepare_model", PrepareModelConfig)
    seed = profile.value("seed")
    prompt = profile.value("agent.prompt")
    with recorded_curve(scratch.curve):
        prepare_model(config, prompt, seed, profile.models / "base")


if __name__ == "__main__":
    run(STAGE, followed(main))
