"""Scores of an index's retrievers against the gold evidence of the questions that have any."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.records import NonEmpty, Question, Record
from deepsearch_rl.search.gold import Gold, mean_scores, score_retriever, warn_of_missing, with_gold
from deepsearch_rl.search.manifest import read_manifest
from deepsearch_rl.search.own_retriever import RETRIEVERS
from deepsearch_rl.search.searcher import Searcher, open_index, retrievers_of


class QualityConfig(Record):
    """What is measured after an index is built."""

    split: NonEmpty = Field(
        description="questions of this split are searched for, one file per dataset"
    )
    cutoffs: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        min_length=1, description="the k of hits@k and recall@k"
    )


class DatasetConfig(Record):
    """An entry of section ``datasets``."""

    corpus: NonEmpty = Field(description="the corpus that the questions are answered from")


def measure(
    searcher: Searcher, questions: Sequence[tuple[str, Gold]], cutoffs: Sequence[int]
) -> dict[str, float]:
    """Return the mean scores over at least one question, and their number ``n``."""
    scores = score_retriever(searcher.retriever, searcher.chunks, questions, cutoffs)
    return {"n": len(scores), **mean_scores(scores)}


def measure_datasets(
    index_root: Path,
    chunks_root: Path,
    questions_root: Path,
    datasets: dict[str, DatasetConfig],
    config: QualityConfig,
) -> dict[str, dict[str, dict[str, float]]]:
    """Return scores by dataset and retriever, each dataset searched in its corpus's index.

    Retrievers that need a half which the index was built without are left out.
    """

    # An index is opened once, and only where a question has evidence to look for
    @cache
    def searcher(corpus: str, retriever: str) -> Searcher:
        return open_index(index_root / corpus, chunks_root / f"{corpus}.jsonl", retriever)

    scores: dict[str, dict[str, dict[str, float]]] = {}
    for name, dataset in datasets.items():
        asked = list(read_jsonl(questions_root / name / f"{config.split}.jsonl", Question))
        questions = with_gold(asked)
        scores[name] = {}
        if not questions:
            # Zero questions say that nothing could be measured; a missing name would say nothing
            scores[name].update((retriever, {"n": 0}) for retriever in RETRIEVERS)
            continue

        retrievers = retrievers_of(read_manifest(index_root / dataset.corpus), RETRIEVERS)
        chunks = searcher(dataset.corpus, retrievers[0]).chunks
        warn_of_missing(chunks, asked, f"{name}, {config.split}")

        for retriever in retrievers:
            opened = searcher(dataset.corpus, retriever)
            scores[name][retriever] = measure(opened, questions, config.cutoffs)

    return scores


def training_questions(
    questions_root: Path, datasets: Mapping[str, DatasetConfig], split: str
) -> dict[str, list[Question]]:
    """Return the questions of a split by the corpus that answers them; a dataset without that split has none."""
    by_corpus: dict[str, list[Question]] = {}
    for name, dataset in datasets.items():
        path = questions_root / name / f"{split}.jsonl"
        if path.is_file():
            by_corpus.setdefault(dataset.corpus, []).extend(read_jsonl(path, Question))

    return by_corpus
