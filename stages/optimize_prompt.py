"""Look for a better system prompt for one model: `python -m stages.optimize_prompt params.yaml api`."""

from pathlib import Path

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Scratch, Stage, run
from deepsearch_rl.serve.launch import ServingConfig
from deepsearch_rl.train.curves import followed, recorded_curve
from deepsearch_rl.train.prompt_search import (
    OptimizePromptConfig,
    PromptTask,
    optimize_prompt,
)

STAGE = Stage(
    sections=("seed", "optimize_prompt", "agent", "retrieval", "serving", "datasets"),
    packages=("core", "data", "chat", "search", "server", "serve", "agent", "train"),
    inputs=(
        "{optimize_prompt.models.{item}}",
        "{optimize_prompt.reflection.endpoint}",
        "{agent.prompt}",
        "data/{profile}/index",
        "data/{profile}/chunks",
        "data/{profile}/questions",
    ),
)


def main(profile: Profile, item: str, scratch: Scratch) -> None:
    """Write ``data/<profile>/prompts/<model>/``."""
    config = profile.section("optimize_prompt", OptimizePromptConfig)
    task = PromptTask(
        name=item,
        folder=Path(look_up("model in optimize_prompt.models", item, config.models)),
        setting=RolloutSetting.of(profile, config.dataset),
        serving=profile.section("serving", ServingConfig),
    )
    with recorded_curve(scratch.curve):
        optimize_prompt(task, config, scratch.path, profile.data / "prompts" / item)


if __name__ == "__main__":
    run(STAGE, followed(main))
