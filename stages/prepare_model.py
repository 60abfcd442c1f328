"""prepare_model: the base model, trained from scratch (tiny) or a hub snapshot at a pinned revision (gpu)."""

from deepsearch_rl.files import sha256_json
from deepsearch_rl.profile import Profile
from deepsearch_rl.training.curves import curve_path, recorded_curve
from deepsearch_rl.training.pretrain.prepare import PrepareModelConfig, prepare_model
from stages.entry import run
from stages.followed import followed


def main(profile: Profile) -> None:
    """Write models/<profile>/base."""
    config, seed = profile.section("prepare_model", PrepareModelConfig), profile.value("seed")
    key = sha256_json([config.model_dump(mode="json"), seed])
    with recorded_curve(curve_path(profile.work, f"prepare_model-{key[:12]}")):
        prepare_model(config, seed, profile.models / "base")


if __name__ == "__main__":
    run(followed(main))
