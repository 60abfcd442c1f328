"""Choose the teacher's good trajectories and convert them to training rows."""

from deepsearch_rl.trajectories.training_set import FilterConfig, Paths, build_training_set
from stages.entry import Params, run


def main(params: Params) -> None:
    """Write ``data/<profile>/sft/train.jsonl`` and ``reports/<profile>/filter.json``."""
    config = params.section("filter", FilterConfig)
    paths = Paths(
        trajectories=params.data / "trajectories" / "teacher.jsonl",
        questions=params.data / "questions" / config.dataset / f"{config.split}.jsonl",
        model=params.models / "base",
        rows=params.data / "sft" / "train.jsonl",
        report=params.reports / "filter.json",
    )
    build_training_set(config, paths)


if __name__ == "__main__":
    run(main)
