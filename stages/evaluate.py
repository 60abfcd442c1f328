"""Answer every question set with one model and score it."""

from pathlib import Path

from deepsearch_rl.agent.timing import keep_times
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Scratch, Stage, run
from deepsearch_rl.evaluate.evaluate_model import evaluate_model
from deepsearch_rl.evaluate.evaluation_plan import Evaluation

STAGE = Stage(
    sections=(
        "seed",
        "evaluate",
        "agent",
        "retrieval",
        "serving",
        "datasets",
        "chunk",
        "model_settings",
    ),
    packages=("core", "data", "chat", "search", "server", "serve", "agent", "evaluate"),
    inputs=(
        "{models.{item}}",
        "{agent.prompt}",
        "src/deepsearch_rl/prompts",
        "data/{profile}/index",
        "data/{profile}/chunks",
        "data/{profile}/questions",
    ),
)


def main(profile: Profile, item: str, scratch: Scratch) -> None:
    """Write ``data/<profile>/evaluate/<model>/``."""
    # A model's folder is among the stage's deps, so it is no param
    folders = profile.values["models"]
    folder = Path(look_up("model", item, folders))
    changes = profile.value("model_settings")
    for name in changes:
        look_up("model in model_settings", name, folders)
    setting = Evaluation.of(profile.with_values(changes.get(item, {})))
    # All of them, also those of other models: a misspelt name is no model's
    for variant in setting.evaluate.variants.values():
        for name in variant.models or ():
            look_up("model in evaluate.variants", name, folders)

    out = profile.data / "evaluate" / item
    evaluate_model(item, folder, setting, profile.data, out, scratch.path)
    keep_times(scratch.path, profile.name, item)


if __name__ == "__main__":
    run(STAGE, main)
