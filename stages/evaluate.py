"""Answer every question set with one model and score it."""

from pathlib import Path

from deepsearch_rl.errors import look_up
from deepsearch_rl.evaluation.evaluate_model import evaluate_model
from deepsearch_rl.evaluation.plan import Evaluation
from deepsearch_rl.profile import Profile
from deepsearch_rl.trajectories.collect import evaluation_logs
from stages.entry import run_for_item


def main(profile: Profile, item: str) -> None:
    """Write ``data/<profile>/evaluate/<model>/``."""
    folders = profile.values["models"]  # a model's folder is among the stage's deps, so it is no param
    folder = Path(look_up("model", item, folders))
    changes = profile.value("model_settings")
    for name in changes:
        look_up("model in model_settings", name, folders)
    setting = Evaluation.of(profile.with_values(changes.get(item, {})))
    for variant in setting.evaluate.variants.values():
        for name in variant.models or ():
            look_up("model in evaluate.variants", name, folders)
    out = profile.data / "evaluate" / item
    evaluate_model(item, folder, setting, profile.data, out, evaluation_logs(profile.name, item))


if __name__ == "__main__":
    run_for_item(main)
