"""Look for a better system prompt for one model: `python -m stages.optimize_prompt params.yaml api`."""

from pathlib import Path

from deepsearch_rl.errors import look_up
from deepsearch_rl.profile import Profile
from deepsearch_rl.serving.launch import ServingConfig
from deepsearch_rl.training.prompt_search import OptimizePromptConfig, PromptTask, optimize_prompt
from deepsearch_rl.trajectories.rollout_setting import RolloutSetting
from stages.entry import run_for_item
from stages.followed import followed


def main(profile: Profile, item: str) -> None:
    """Write ``data/<profile>/prompts/<model>/``."""
    config = profile.section("optimize_prompt", OptimizePromptConfig)
    task = PromptTask(
        name=item,
        folder=Path(look_up("model in optimize_prompt.models", item, config.models)),
        setting=RolloutSetting.of(profile, config.dataset),
        serving=profile.section("serving", ServingConfig),
    )
    optimize_prompt(task, config, profile.work, profile.data / "prompts" / item)


if __name__ == "__main__":
    run_for_item(followed(main))
