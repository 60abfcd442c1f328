"""Measure how well one model follows instructions."""

from pathlib import Path

from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run
from deepsearch_rl.evaluate.ifeval import IfevalConfig, evaluate_ifeval, load_prompts
from deepsearch_rl.serve.launch import ServingConfig, serve_models

STAGE = Stage(
    sections=("seed", "ifeval", "serving", "model_settings"),
    packages=("core", "data", "chat", "serve", "evaluate"),
    inputs=("{models.{item}}", "{ifeval.path}"),
)


def main(profile: Profile, item: str) -> None:
    """Write ``data/<profile>/ifeval/<model>/``."""
    # A model's folder is among the stage's deps, so it is no param
    folders = profile.values["models"]
    folder = Path(look_up("model", item, folders))
    profile = profile.with_values(profile.value("model_settings").get(item, {}))
    config = profile.section("ifeval", IfevalConfig)
    seed = profile.value("seed")
    out = profile.data / "ifeval" / item
    # What they need is found missing before a model is loaded
    prompts = load_prompts(config)
    with serve_models(folder, profile.section("serving", ServingConfig)) as endpoints:
        evaluate_ifeval(item, endpoints, config, prompts, seed, out)


if __name__ == "__main__":
    run(STAGE, main)
