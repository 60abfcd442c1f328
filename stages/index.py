"""Build BM25 and dense indexes over every corpus's chunks and measure them against the gold evidence."""

from deepsearch_rl.core.files import write_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import RetrievalReport
from deepsearch_rl.core.stage import Scratch, Stage, run
from deepsearch_rl.data.chunking import ChunkConfig
from deepsearch_rl.search.build import IndexSection, build_indexes
from deepsearch_rl.search.quality import (
    DatasetConfig,
    measure_datasets,
    training_questions,
)

STAGE = Stage(
    sections=("seed", "index", "datasets", "chunk"),
    packages=("core", "data", "search"),
    inputs=("data/{profile}/chunks", "data/{profile}/questions"),
)


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``data/<profile>/index/<corpus>/`` and ``reports/<profile>/retrieval.json``."""
    section = profile.section("index", IndexSection)
    datasets = profile.mapping("datasets", DatasetConfig)
    chunks = profile.data / "chunks"
    index = profile.data / "index"
    questions = profile.data / "questions"
    learning = section.fusion.learning
    learnt_from = training_questions(questions, datasets, learning.split) if learning else {}
    for name, variant in profile.section("chunk", ChunkConfig).variants.items():
        learnt_from.setdefault(name, learnt_from.get(variant.corpus, []))
    build_indexes(chunks, index, section, profile.value("seed"), scratch.path, learnt_from)
    scores = measure_datasets(index, chunks, questions, datasets, section.quality)
    write_json(profile.reports / "retrieval.json", RetrievalReport(scores).model_dump(mode="json"))


if __name__ == "__main__":
    run(STAGE, main)
