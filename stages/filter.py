"""Choose the teacher's good trajectories and convert them to training rows."""

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run
from deepsearch_rl.train.filters import FilterConfig
from deepsearch_rl.train.training_set import build_training_set

STAGE = Stage(
    sections=("filter", "agent"),
    packages=("core", "data", "chat", "search", "agent", "train"),
    inputs=(
        "{agent.prompt}",
        "data/{profile}/trajectories",
        "data/{profile}/questions",
        "models/{profile}/base",
    ),
)


def main(profile: Profile) -> None:
    """Write ``data/<profile>/sft/train.jsonl`` and ``reports/<profile>/filter.json``."""
    config = profile.section("filter", FilterConfig)
    agent = profile.section("agent", AgentConfig)
    questions = profile.data / "questions"
    datasets = {folder.name: folder for folder in questions.glob("*") if folder.is_dir()} or {
        config.dataset: questions / config.dataset
    }
    build_training_set(
        config,
        agent,
        trajectories=profile.data / "trajectories" / "teacher.jsonl",
        questions=look_up("dataset", config.dataset, datasets) / f"{config.split}.jsonl",
        model=profile.models / "base",
        rows=profile.data / "sft" / "train.jsonl",
        report=profile.reports / "filter.json",
    )


if __name__ == "__main__":
    run(STAGE, main)
