"""Known faults in runs over real question sets are found again, in the shares in which they were planted.

The agents are scripts: what they do to whom is drawn before they run, and that is the key.
"""

import json
import random
from pathlib import Path

import pytest

from benchmarks.planted_faults import (
    HELD_OUT,
    SEED,
    TOP_K,
    BrokenSearch,
    build,
    explain,
    garbled,
    held_out,
    index_config,
    known_questions,
    right_with_evidence,
    run_agent,
    with_format_faults,
)
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Chunk, ChunkMetadata, Document, Question
from deepsearch_rl.data.chunking import ChunkConfig, chunk_corpora
from deepsearch_rl.data.flashrag import read_documents, read_questions
from deepsearch_rl.data.row_files import read_numbered
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.explain.corpus import evidence_of, scan_corpus
from deepsearch_rl.evaluate.explain.records import RunReport
from deepsearch_rl.search import RetrieverName
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.gold import mean_scores, score_retriever, with_gold
from deepsearch_rl.search.searcher import open_index

pytestmark = [pytest.mark.realdata, pytest.mark.timeout(300)]


def costs(report: RunReport) -> dict[Cause, float]:
    return {cause: entry.lost.mean for cause, entry in report.causes.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["musique", pytest.param("2wikimultihopqa", marks=pytest.mark.nightly)]
)
def test_the_share_of_questions_whose_documents_were_removed_is_recovered(
    real_data: Path, tmp_path: Path, name: str
) -> None:
    folder = real_data / name
    questions = known_questions(folder)
    removed, affected = held_out(questions)
    share = len(affected) / len(questions)
    assert share == pytest.approx(HELD_OUT, abs=0.02)
    documents = read_documents(folder / "corpus.jsonl.gz")
    remaining = [each for each in documents if each.id not in removed]
    searcher = build(tmp_path, remaining, "bm25")
    rollouts = run_agent(questions, searcher, right_with_evidence)

    # All questions: exactly those that need a removed document
    report = explain(tmp_path / "run.jsonl", rollouts, questions, searcher)
    assert report.causes[Cause.NOT_IN_CORPUS].answers == len(affected)
    assert report.causes[Cause.NOT_IN_CORPUS].lost.mean == pytest.approx(share)
    assert report.ceilings.in_corpus is not None
    assert report.ceilings.in_corpus.whole.mean == pytest.approx(1 - share)
    assert not any("other passages" in note for note in report.notes)

    # Half of them, drawn at random: the interval holds the share of all
    sample = random.Random(SEED + 1).sample(questions, len(questions) // 2)
    names = {each.id for each in sample}
    rollouts = [each for each in rollouts if each.question_id in names]
    of_sample = explain(tmp_path / "sample.jsonl", rollouts, sample, searcher)
    lost = of_sample.causes[Cause.NOT_IN_CORPUS].lost
    assert lost.low <= share <= lost.high

    # What is left was found in part, or not at all; nothing that was found was not used
    assert Cause.NOT_USED not in report.causes
    assert report.ceilings.agent is not None
    assert report.ceilings.agent.whole.mean == pytest.approx(report.f1.mean, abs=0.02)


@pytest.mark.slow
def test_a_broken_search_and_an_index_that_misses_passages_are_told_apart(
    real_data: Path, tmp_path: Path
) -> None:
    folder = real_data / "musique"
    questions = known_questions(folder)[:150]
    documents = list(read_documents(folder / "corpus.jsonl.gz"))
    searcher = build(tmp_path, documents, "bm25")

    # The rollouts' search was broken: their queries find the evidence now
    rollouts = run_agent(questions, BrokenSearch(searcher), right_with_evidence)
    report = explain(tmp_path / "broken.jsonl", rollouts, questions, searcher)
    assert costs(report)[Cause.BAD_QUERY] > 0.5
    assert Cause.INDEX_MISSES not in report.causes
    assert any(
        "find other passages in this index than the run shows" in note for note in report.notes
    )

    # The index cannot find the gold passages of these questions: their words are gone
    changed, blind = garbled(questions, documents, 45)
    searcher = build(tmp_path, changed, "bm25", "garbled")
    rollouts = run_agent(questions, searcher, right_with_evidence)
    report = explain(tmp_path / "garbled.run.jsonl", rollouts, questions, searcher)
    assert report.causes[Cause.INDEX_MISSES].answers == len(blind) >= 45
    assert Cause.NOT_IN_CORPUS not in report.causes


@pytest.mark.slow
def test_planted_format_errors_are_lost_to_the_metric_in_their_shares(
    real_data: Path, tmp_path: Path
) -> None:
    folder = real_data / "2wikimultihopqa"
    questions = known_questions(folder)
    closed = {"yes", "no"}
    questions = [each for each in questions if each.golden_answers[0].lower() not in closed]
    searcher = build(tmp_path, read_documents(folder / "corpus.jsonl.gz"), "bm25")
    right = run_agent(questions, searcher, lambda each, _: each.golden_answers[0])
    rollouts, counts = with_format_faults(right, random.Random(SEED))

    report = explain(tmp_path / "run.jsonl", rollouts, questions, searcher)
    details = report.causes[Cause.METRIC].details
    assert details["format"] == counts["format"]
    assert details["extra words"] == counts["extra words"]
    others = sum(
        entry.answers for cause, entry in report.causes.items() if cause is not Cause.METRIC
    )
    assert others == counts["wrong"]


@pytest.mark.slow
def test_what_a_set_says_of_its_own_corpus_is_what_the_scan_finds(real_data: Path) -> None:
    folder = real_data / "hotpotqa"
    questions = {each.id: each for each in read_questions(folder / "dev.jsonl.gz")}
    evidence = {name: gold for name, each in questions.items() if (gold := evidence_of(each))}
    documents = read_documents(folder / "corpus.jsonl.gz")
    scan = scan_corpus(map(as_chunk, documents), evidence)
    assert scan.passages == 19_379

    other: list[str] = []
    for name, question in questions.items():
        label = (question.metadata.model_extra or {})["gold_in_corpus"]
        found = len(scan.covered[name])
        items = len(evidence[name].items)
        own = "all" if found == items else "some" if found else "none"
        if own != label:
            other.append(name)
    assert len(other) <= 0.001 * len(questions), other


def as_chunk(document: Document) -> Chunk:
    return Chunk(
        id=document.id,
        contents=document.contents,
        metadata=ChunkMetadata.of(document, 1, 0),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("retriever", ["bm25", "hybrid"])
def test_on_real_news_the_ceilings_are_the_retrievers_own_scores(
    real_data: Path, tmp_path: Path, retriever: RetrieverName
) -> None:
    folder = real_data / "multihoprag"
    questions: list[Question] = []
    for _, line in read_numbered(folder / "queries.jsonl.gz"):
        row = json.loads(line)
        if row["evidence_list"]:
            metadata = {
                "question_type": row["question_type"],
                "evidence_list": row["evidence_list"],
            }
            values = {"id": row["id"], "question": row["query"], "golden_answers": [row["answer"]]}
            questions.append(Question.model_validate(values | {"metadata": metadata}))

    articles: list[Document] = []
    for _, line in read_numbered(folder / "corpus.jsonl.gz"):
        row = json.loads(line)
        articles.append(Document(id=row["doc_id"], contents=f"{row['title']}\n{row['body']}"))
    write_jsonl(tmp_path / "corpora" / "news.jsonl", articles)
    chunked = ChunkConfig(
        chunker="sentences", chunk_size=256, overlap=0, tokenizer="words", passages=(), variants={}
    )
    chunk_corpora(tmp_path / "corpora", tmp_path / "chunks", chunked)
    chunks = tmp_path / "chunks" / "news.jsonl"
    build_index(chunks, tmp_path / "index", index_config(retriever), SEED)
    searcher = open_index(tmp_path / "index", retriever=retriever)

    rollouts = run_agent(questions, searcher, right_with_evidence)
    report = explain(tmp_path / "run.jsonl", rollouts, questions, searcher)
    assert report.evidence == {"facts": len(questions)}
    scores = mean_scores(
        score_retriever(searcher.retriever, searcher.chunks, with_gold(questions), (TOP_K,))
    )
    assert report.ceilings.question is not None
    assert report.ceilings.question.recall.mean == pytest.approx(
        scores[f"evidence_recall@{TOP_K}"], abs=1e-4
    )
    assert report.ceilings.best_query is not None
    assert report.ceilings.best_query.recall.mean >= report.ceilings.question.recall.mean
    lost = sum(costs(report).values())
    assert lost == pytest.approx(1 - report.f1.mean, abs=1e-12)
    assert set(report.types) == {"comparison_query", "inference_query", "temporal_query"}
    # Facts that a passage boundary cuts in two are in no passage
    assert report.ceilings.in_corpus is not None
    assert 0.9 < report.ceilings.in_corpus.whole.mean <= 1
