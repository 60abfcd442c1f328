"""Look for a better system prompt for one model: `python -m stages.optimize_prompt params.yaml api`."""

from pathlib import Path

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.errors import look_up
from deepsearch_rl.profile import Profile
from deepsearch_rl.retrieval.quality import DatasetConfig
from deepsearch_rl.retrieval.server.launch import RetrievalConfig
from deepsearch_rl.serving.launch import ServingConfig
from deepsearch_rl.training.prompt_search import OptimizePromptConfig, PromptTask, optimize_prompt
from stages.entry import run_for_item
from stages.followed import followed


def main(profile: Profile, item: str) -> None:
    """Write ``data/<profile>/prompts/<model>/``."""
    config = profile.section("optimize_prompt", OptimizePromptConfig)
    datasets = profile.mapping("datasets", DatasetConfig)
    corpus = look_up("dataset", config.dataset, datasets).corpus
    questions = profile.data / "questions" / config.dataset
    task = PromptTask(
        name=item,
        folder=Path(look_up("model in optimize_prompt.models", item, config.models)),
        train=questions / "train.jsonl",
        dev=questions / "dev.jsonl",
        index=profile.data / "index" / corpus,
        chunks=profile.data / "chunks" / f"{corpus}.jsonl",
        agent=profile.section("agent", AgentConfig),
        retrieval=profile.section("retrieval", RetrievalConfig).for_dataset(config.dataset, datasets),
        serving=profile.section("serving", ServingConfig),
        seed=profile.value("seed"),
    )
    optimize_prompt(task, config, profile.work, profile.data / "prompts" / item)


if __name__ == "__main__":
    run_for_item(followed(main))
