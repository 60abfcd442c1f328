"""How well retrieval finds the gold evidence, scored as MultiHop-RAG's official script does (Tang and Yang 2024).

White space is stripped from facts and chunks; a chunk is relevant if it contains a fact. Questions without known
evidence (unanswerable ones among them) are left out. Added to the official figures: evidence recall, the mean share of
a question's facts that the top k contain.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import Field

from deepsearch_rl.files import read_jsonl
from deepsearch_rl.records import NonEmpty, Question, Record
from deepsearch_rl.retrieval.searcher import RETRIEVERS, Searcher, open_index

RANKED = 10
"""Depth of MRR@10 and MAP@10."""


class QualityConfig(Record):
    """What is measured after an index is built."""

    split: NonEmpty = Field(description="questions of this split are searched for, one file per dataset")
    cutoffs: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1, description="the k of hits@k and recall@k")


class DatasetConfig(Record):
    """An entry of section ``datasets``."""

    corpus: NonEmpty = Field(description="the corpus that the questions are answered from")


def measure(searcher: Searcher, questions: Sequence[Question], cutoffs: Sequence[int]) -> dict[str, float]:
    """Mean scores in [0, 1] over at least one question, all with evidence, and their number ``n``."""
    found = searcher.search([question.question for question in questions], max(*cutoffs, RANKED))
    rows = []
    for question, hits in zip(questions, found, strict=True):
        facts = [_stripped(evidence.fact) for evidence in question.metadata.evidence_list or ()]
        rows.append(
            score_facts([_found_facts(facts, _stripped(hit.chunk.contents)) for hit in hits], len(facts), cutoffs)
        )
    return {"n": len(rows), **{name: round(fmean(row[name] for row in rows), 4) for name in rows[0]}}


def score_facts(found_by_rank: Sequence[set[int]], facts: int, cutoffs: Sequence[int]) -> dict[str, float]:
    """Scores of one question, whose ranked chunks contain the given facts (by position, of ``facts`` in all).

    MAP@10 is the sum over ranks of newly found facts / rank, divided by min(facts, 10).
    """
    scores: dict[str, float] = {}
    for cutoff in cutoffs:
        seen = set().union(*found_by_rank[:cutoff])
        scores[f"hits@{cutoff}"] = float(bool(seen))
        scores[f"evidence_recall@{cutoff}"] = len(seen) / facts
    relevant = [rank for rank, found in enumerate(found_by_rank[:RANKED], 1) if found]
    scores[f"mrr@{RANKED}"] = 1 / relevant[0] if relevant else 0.0
    seen, gain = set[int](), 0.0
    for rank, found in enumerate(found_by_rank[:RANKED], 1):
        gain += len(found - seen) / rank
        seen |= found
    scores[f"map@{RANKED}"] = gain / min(facts, RANKED)
    return scores


def measure_datasets(
    index_root: Path, chunks_root: Path, questions_root: Path, datasets: dict[str, DatasetConfig], config: QualityConfig
) -> dict[str, dict[str, dict[str, float]]]:
    """Scores by dataset and retriever, each dataset searched in its corpus's index."""

    @cache  # an index is opened once, and only where a question has evidence to look for
    def searcher(corpus: str, retriever: str) -> Searcher:
        return open_index(index_root / corpus, chunks_root / f"{corpus}.jsonl", retriever)

    scores: dict[str, dict[str, dict[str, float]]] = {}
    for name, dataset in datasets.items():
        rows = read_jsonl(questions_root / name / f"{config.split}.jsonl", Question)
        asked = [question for question in rows if question.metadata.evidence_list]
        scores[name] = {
            retriever: measure(searcher(dataset.corpus, retriever), asked, config.cutoffs) if asked else {"n": 0}
            for retriever in RETRIEVERS
        }
    return scores


def _stripped(text: str) -> str:
    return "".join(text.split())


def _found_facts(facts: Sequence[str], chunk: str) -> set[int]:
    return {position for position, fact in enumerate(facts) if fact in chunk}
