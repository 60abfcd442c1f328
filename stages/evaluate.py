"""Answer every question set with one model and score it."""

from pathlib import Path

from deepsearch_rl.agent.collect import SERVER_FAILURES
from deepsearch_rl.agent.timing import keep_times
from deepsearch_rl.chat.endpoint import read_remote
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.scratch import Scratch
from deepsearch_rl.core.stage_entry import ROOT, run
from deepsearch_rl.core.stage_graph import require_data
from deepsearch_rl.evaluate.evaluate_model import evaluate_model
from deepsearch_rl.evaluate.evaluation_plan import Evaluation, settings_of


def main(profile: Profile, item: str, scratch: Scratch) -> None:
    """Write ``data/<profile>/evaluate/<model>/``.

    The rollouts are kept where they cost money, so that more questions or a further prompt ask only
    what is new, and where a server failed some, so that a repeated run asks for those alone.
    """
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

    prompts = {each.agent.prompt for each in settings_of(setting, item)}
    require_data(profile, f"evaluate@{item}", prompts, ROOT)
    out = profile.data / "evaluate" / item
    evaluation = evaluate_model(item, folder, setting, profile.data, out, scratch.path)
    keep_times(scratch.path, profile.name, item)
    has_failures = any(row.failures.keys() & SERVER_FAILURES for row in evaluation.rows)
    if read_remote(folder) or has_failures:
        scratch.keep()


if __name__ == "__main__":
    run(main)
