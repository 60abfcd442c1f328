"""Part of `make optimize-prompt`: the prompt that was found becomes a variant of the evaluation.

    python -m tools.optimized_prompt PROFILE MODEL

`make params FORCE=1` takes it out again.
"""

import argparse

from dvc.utils.serialize import modify_yaml

from deepsearch_rl.core.profile import PARAMS, dvc_file, find_profile
from tools import ROOT

VARIANT = "optimized"


def add_variant(profile: str, model: str) -> None:
    """Write the variant, and the folder that its prompt lies in, into a profile's params.yaml."""
    settings = find_profile(ROOT, profile)
    prompts = settings.data / "prompts"
    variant = {
        "models": None,
        "dataset": settings.value("optimize_prompt.dataset"),
        "prompt": (prompts / model).as_posix(),
        "top_k": None,
        "corpus": None,
        "questions": None,
        "samples": 1,
    }
    with modify_yaml(str((ROOT / dvc_file(profile)).with_name(PARAMS))) as values:
        values["evaluate"]["variants"][VARIANT] = variant
        values["evaluate"]["prompts"] = prompts.as_posix()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile")
    parser.add_argument(
        "model", help="the model of optimize_prompt.models that the prompt was found for"
    )
    arguments = parser.parse_args()
    add_variant(arguments.profile, arguments.model)
