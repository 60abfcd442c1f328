"""Let the teacher answer the training questions."""

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.errors import look_up
from deepsearch_rl.profile import Profile
from deepsearch_rl.retrieval.quality import DatasetConfig
from deepsearch_rl.retrieval.server.launch import RetrievalConfig
from deepsearch_rl.trajectories.synthesize import ServedTeacher, SynthesizeConfig, synthesize
from stages.entry import run


def main(profile: Profile) -> None:
    """Write ``data/<profile>/trajectories/teacher.jsonl``."""
    answer(profile)


def answer(profile: Profile, served: ServedTeacher | None = None) -> None:
    """Write the answers of the profile's teacher, which is ``served`` where it is the model itself."""
    config = profile.section("synthesize", SynthesizeConfig)
    datasets = profile.mapping("datasets", DatasetConfig)
    corpus = look_up("dataset", config.dataset, datasets).corpus
    synthesize(
        config,
        profile.section("agent", AgentConfig),
        profile.section("retrieval", RetrievalConfig).for_dataset(config.dataset, datasets),
        profile.value("seed"),
        served,
        questions=profile.data / "questions" / config.dataset / f"{config.split}.jsonl",
        index=profile.data / "index" / corpus,
        chunks=profile.data / "chunks" / f"{corpus}.jsonl",
        out=profile.data / "trajectories" / "teacher.jsonl",
    )


if __name__ == "__main__":
    run(main)
