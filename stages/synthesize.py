"""Let the teacher answer the training questions."""

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.retrieval.quality import DatasetConfig
from deepsearch_rl.retrieval.server.launch import RetrievalConfig
from deepsearch_rl.trajectories.synthesize import Source, SynthesizeConfig, synthesize
from stages.entry import Params, chosen, run


def main(params: Params) -> None:
    """Write ``data/<profile>/trajectories/teacher.jsonl``."""
    config = params.section("synthesize", SynthesizeConfig)
    corpus = chosen("dataset", config.dataset, params.mapping("datasets", DatasetConfig)).corpus
    source = Source(
        questions=params.data / "questions" / config.dataset / f"{config.split}.jsonl",
        index=params.data / "index" / corpus,
        chunks=params.data / "chunks" / f"{corpus}.jsonl",
    )
    agent, retrieval = params.section("agent", AgentConfig), params.section("retrieval", RetrievalConfig)
    out = params.data / "trajectories" / "teacher.jsonl"
    synthesize(config, agent, retrieval, source, params.value("seed"), out)


if __name__ == "__main__":
    run(main)
