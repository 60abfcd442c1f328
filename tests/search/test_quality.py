from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Evidence, Question, QuestionMetadata
from deepsearch_rl.search.gold import score_facts
from deepsearch_rl.search.own_retriever import RETRIEVERS
from deepsearch_rl.search.quality import DatasetConfig, QualityConfig, measure_datasets

QUALITY = QualityConfig(split="val", cutoffs=(1,))


def question(text: str, facts: list[str] | None) -> Question:
    evidence = None if facts is None else tuple(Evidence(fact=fact) for fact in facts)
    return Question(
        id=text,
        question=text,
        golden_answers=("x",),
        metadata=QuestionMetadata(evidence_list=evidence),
    )


def test_scores_of_one_question_follow_their_definitions() -> None:
    # three facts; rank 2 holds fact 0, rank 3 holds facts 0 and 1, fact 2 is never found
    scores = score_facts([set(), {0}, {0, 1}], facts=3, cutoffs=[1, 2, 3])
    assert scores == pytest.approx(
        {
            "hits@1": 0.0,
            "hits@2": 1.0,
            "hits@3": 1.0,
            "evidence_recall@1": 0.0,
            "evidence_recall@2": 1 / 3,
            "evidence_recall@3": 2 / 3,
            "mrr@10": 1 / 2,
            "map@10": (1 / 2 + 1 / 3) / 3,
        }
    )


def test_ap_passes_one_only_where_a_chunk_holds_several_of_more_than_ten_items() -> None:
    assert score_facts([set(range(12))], facts=12, cutoffs=[])["map@10"] == pytest.approx(1.2)
    assert score_facts([set(range(10))], facts=10, cutoffs=[])["map@10"] == pytest.approx(1.0)


def test_what_is_found_below_rank_ten_counts_for_recall_alone() -> None:
    scores = score_facts([set()] * 10 + [{0}], facts=1, cutoffs=[11])
    assert (scores["hits@11"], scores["mrr@10"], scores["map@10"]) == (1.0, 0.0, 0.0)


def test_questions_without_evidence_are_left_out(
    index_dir: Path, chunks_path: Path, tmp_path: Path
) -> None:
    unanswerable, unknown = (
        question("Who is the king of Mars?", []),
        question("What is not known?", None),
    )
    answerable = question("Which city is the capital of Austria?", ["capital of Austria"])
    write_jsonl(tmp_path / "some" / "val.jsonl", [unanswerable, answerable, unknown])
    write_jsonl(tmp_path / "none" / "val.jsonl", [unanswerable, unknown])
    datasets = {"some": DatasetConfig(corpus="small"), "none": DatasetConfig(corpus="not built")}
    scores = measure_datasets(index_dir.parent, chunks_path.parent, tmp_path, datasets, QUALITY)
    assert {row["n"] for row in scores["some"].values()} == {1}
    assert scores["none"] == {retriever: {"n": 0} for retriever in RETRIEVERS}


def test_every_dataset_is_measured_with_every_retriever_in_its_corpus(
    index_dir: Path, chunks_path: Path, tmp_path: Path
) -> None:
    asked = "Which city is the capital of Austria, on the Danube?"
    write_jsonl(tmp_path / "answerable" / "val.jsonl", [question(asked, ["capital  of\nAustria"])])
    write_jsonl(
        tmp_path / "elsewhere" / "val.jsonl", [question(asked, ["A fact of another corpus."])]
    )
    datasets = {name: DatasetConfig(corpus="small") for name in ("answerable", "elsewhere")}
    scores = measure_datasets(index_dir.parent, chunks_path.parent, tmp_path, datasets, QUALITY)
    metrics = ("hits@1", "evidence_recall@1", "mrr@10", "map@10")
    perfect = {"n": 1, **dict.fromkeys(metrics, 1.0)}
    nothing = {"n": 1, **dict.fromkeys(metrics, 0.0)}
    assert scores == {
        "answerable": dict.fromkeys(RETRIEVERS, perfect),
        "elsewhere": dict.fromkeys(RETRIEVERS, nothing),
    }
