"""Choose the teacher's good trajectories and convert them to training rows."""

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.trajectories.training_set import FilterConfig, Paths, build_training_set
from stages.entry import Params, chosen, run


def main(params: Params) -> None:
    """Write ``data/<profile>/sft/train.jsonl`` and ``reports/<profile>/filter.json``."""
    config, agent = params.section("filter", FilterConfig), params.section("agent", AgentConfig)
    questions = params.data / "questions"
    datasets = {folder.name: folder for folder in questions.glob("*")} or {config.dataset: questions / config.dataset}
    paths = Paths(
        trajectories=params.data / "trajectories" / "teacher.jsonl",
        questions=chosen("dataset", config.dataset, datasets) / f"{config.split}.jsonl",
        model=params.models / "base",
        rows=params.data / "sft" / "train.jsonl",
        report=params.reports / "filter.json",
    )
    build_training_set(config, paths, agent.history_reasoning)


if __name__ == "__main__":
    run(main)
