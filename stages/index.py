"""Build BM25 and dense indexes over every corpus's chunks and measure them against the gold evidence."""

from deepsearch_rl.corpora.chunking import ChunkConfig
from deepsearch_rl.files import write_json
from deepsearch_rl.records import RetrievalReport
from deepsearch_rl.retrieval.build import IndexSection, build_indexes
from deepsearch_rl.retrieval.quality import DatasetConfig, measure_datasets, training_questions
from stages.entry import Params, run


def main(params: Params) -> None:
    """Write ``data/<profile>/index/<corpus>/`` and ``reports/<profile>/retrieval.json``."""
    section = params.section("index", IndexSection)
    datasets = params.mapping("datasets", DatasetConfig)
    chunks, index = params.data / "chunks", params.data / "index"
    questions = params.data / "questions"
    learning = section.fusion.learning
    learnt_from = training_questions(questions, datasets, learning.split) if learning else {}
    for name, variant in params.section("chunk", ChunkConfig).variants.items():
        learnt_from.setdefault(name, learnt_from.get(variant.corpus, []))
    build_indexes(chunks, index, section, params.value("seed"), params.work / "index", learnt_from)
    scores = measure_datasets(index, chunks, questions, datasets, section.quality)
    write_json(params.reports / "retrieval.json", RetrievalReport(scores).model_dump(mode="json"))


if __name__ == "__main__":
    run(main)
