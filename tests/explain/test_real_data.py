"""Known faults in runs over real question sets are found again, in the shares in which they were planted.

The agents are scripts: what they do to whom is drawn before they run, and that is the key.
"""

import json
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Chunk, ChunkMetadata, Document, Question, Trajectory
from deepsearch_rl.corpora.chunking.chunking import ChunkConfig, chunk_corpora
from deepsearch_rl.corpora.reading.flashrag import read_documents, read_questions
from deepsearch_rl.corpora.reading.layouts import read_numbered
from deepsearch_rl.explain.causes.causes import Cause
from deepsearch_rl.explain.causes.corpus import scan_corpus
from deepsearch_rl.explain.causes.evidence import evidence_of
from deepsearch_rl.explain.causes.explanation import explain_run
from deepsearch_rl.explain.causes.judging import Corpus, judge_run
from deepsearch_rl.explain.causes.records import RunReport, Setting
from deepsearch_rl.explain.standalone.run_files import read_run
from deepsearch_rl.indexing.build import build_index
from deepsearch_rl.retrieval.ranking.gold import mean_scores, score_retriever, with_gold
from deepsearch_rl.retrieval.search.manifest import IndexConfig
from deepsearch_rl.retrieval.search.searcher import Hit, Searcher, SearchesChunks, open_index
from tests.explain.answers import make_rollout

pytestmark = [pytest.mark.realdata, pytest.mark.timeout(300)]
TOP_K = 5
SEED = 0
# Of the questions whose evidence is held out, as of wiki-18 in arXiv 2605.27881
HELD_OUT = 0.37

Answers = Callable[[Question, bool], str]
"""What a scripted agent answers to a question, given whether it saw all evidence."""


def known_questions(folder: Path) -> list[Question]:
    """The questions whose gold documents the corpus beside them has."""
    questions = read_questions(folder / "dev.jsonl.gz")
    return [
        each
        for each in questions
        if (each.metadata.model_extra or {})["gold_in_corpus"] == "all"
        and each.metadata.supporting_doc_ids
    ]


def build(
    folder: Path, documents: Iterable[Document], config: IndexConfig, name: str = "index"
) -> Searcher:
    write_jsonl(folder / f"{name}.jsonl", documents)
    build_index(folder / f"{name}.jsonl", folder / name, config, SEED)
    return open_index(folder / name)


def run_agent(
    path: Path,
    questions: Sequence[Question],
    searcher: SearchesChunks,
    answer: Answers,
) -> Path:
    """Let a script search for every question, then for its gold titles, and write its rollouts."""
    rollouts: list[Trajectory] = []
    for question in questions:
        evidence = evidence_of(question)
        assert evidence is not None
        shown: set[int] = set()
        searches: list[tuple[str, list[tuple[str, str]]]] = []

        for query in (question.question, *(question.metadata.supporting_titles or ())):
            [hits] = searcher.find_hits([query], TOP_K)
            for hit in hits:
                shown |= evidence.found_in(hit.chunk)
            passages = [(hit.chunk.id, hit.chunk.contents) for hit in hits]
            searches.append((query.replace('"', ""), passages))

        text = answer(question, len(shown) == len(evidence.items))
        rollouts.append(make_rollout(question, text, searches))

    rollouts.sort(key=lambda rollout: rollout.id)
    write_jsonl(path, rollouts)
    return path


def right_with_evidence(question: Question, saw_all: bool) -> str:
    return question.golden_answers[0] if saw_all else "something else entirely"


def explain(
    path: Path, questions: Iterable[Question], searcher: SearchesChunks, chunks: Iterable[Chunk]
) -> RunReport:
    by_id = {each.id: each for each in questions}
    corpus = Corpus(chunks, searcher)
    judged = judge_run(read_run(path), by_id, corpus, TOP_K)
    return explain_run(judged, Setting(), corpus, SEED, draws=500)


def costs(report: RunReport) -> dict[Cause, float]:
    return {cause: entry.lost.mean for cause, entry in report.causes.items()}


def held_out(questions: Sequence[Question]) -> tuple[set[str], set[str]]:
    """Documents to leave out, and the questions that need one of them: :data:`HELD_OUT` of all, drawn one by one."""
    order = list(questions)
    random.Random(SEED).shuffle(order)
    documents: set[str] = set()
    affected: set[str] = set()

    for question in order:
        if len(affected) >= HELD_OUT * len(questions):
            break
        documents.add((question.metadata.supporting_doc_ids or ("",))[0])
        affected = {each.id for each in questions if needs(each, documents)}

    return documents, affected


def needs(question: Question, documents: Collection[str]) -> bool:
    return not set(question.metadata.supporting_doc_ids or ()).isdisjoint(documents)


@pytest.mark.parametrize("name", ["musique", "2wikimultihopqa"])
def test_the_share_of_questions_whose_documents_were_removed_is_recovered(
    real_data: Path, tmp_path: Path, bm25_config: IndexConfig, name: str
) -> None:
    folder = real_data / name
    questions = known_questions(folder)
    removed, affected = held_out(questions)
    share = len(affected) / len(questions)
    assert share == pytest.approx(HELD_OUT, abs=0.02)
    documents = read_documents(folder / "corpus.jsonl.gz")
    remaining = [each for each in documents if each.id not in removed]
    searcher = build(tmp_path, remaining, bm25_config)
    path = run_agent(tmp_path / "run.jsonl", questions, searcher, right_with_evidence)

    # All questions: exactly those that need a removed document
    report = explain(path, questions, searcher, searcher.chunks)
    assert report.causes[Cause.NOT_IN_CORPUS].answers == len(affected)
    assert report.causes[Cause.NOT_IN_CORPUS].lost.mean == pytest.approx(share)
    assert report.ceilings.in_corpus is not None
    assert report.ceilings.in_corpus.whole.mean == pytest.approx(1 - share)
    assert not any("other passages" in note for note in report.notes)

    # Half of them, drawn at random: the interval holds the share of all
    sample = random.Random(SEED + 1).sample(questions, len(questions) // 2)
    path = run_agent(tmp_path / "sample.jsonl", sample, searcher, right_with_evidence)
    lost = explain(path, sample, searcher, searcher.chunks).causes[Cause.NOT_IN_CORPUS].lost
    assert lost.low <= share <= lost.high

    # What is left was found in part, or not at all; nothing that was found was not used
    assert Cause.NOT_USED not in report.causes
    assert report.ceilings.agent is not None
    assert report.ceilings.agent.whole.mean == pytest.approx(report.f1.mean, abs=0.02)


class BrokenSearch(NamedTuple):
    """A search that returns the passages behind those that match."""

    searcher: Searcher

    def find_hits(
        self, queries: Sequence[str], top_k: int, where: object = None
    ) -> list[list[Hit]]:
        """Return the next passages of the file."""
        assert where is None
        chunks = self.searcher.chunks
        results: list[list[Hit]] = []
        for hits in self.searcher.find_hits(queries, top_k):
            rows = [(hit.row + 7) % len(chunks) for hit in hits]
            results.append([Hit(row, 0.0, chunks[row]) for row in rows])
        return results


def test_a_broken_search_and_an_index_that_misses_passages_are_told_apart(
    real_data: Path, tmp_path: Path, bm25_config: IndexConfig
) -> None:
    folder = real_data / "musique"
    questions = known_questions(folder)[:150]
    documents = list(read_documents(folder / "corpus.jsonl.gz"))
    searcher = build(tmp_path, documents, bm25_config)

    # The rollouts' search was broken: their queries find the evidence now
    path = run_agent(
        tmp_path / "broken.jsonl", questions, BrokenSearch(searcher), right_with_evidence
    )
    report = explain(path, questions, searcher, searcher.chunks)
    assert costs(report)[Cause.BAD_QUERY] > 0.5
    assert Cause.INDEX_MISSES not in report.causes
    assert any(
        "find other passages in this index than the run shows" in note for note in report.notes
    )

    # The index cannot find the gold passages of these questions: their words are gone
    blind = set(random.Random(SEED).sample([each.id for each in questions], 45))
    lost_documents = {
        name
        for each in questions
        if each.id in blind
        for name in each.metadata.supporting_doc_ids or ()
    }
    garbled = [
        each.model_copy(update={"contents": f"xq{row}\nzv{row} wk{row}"})
        if each.id in lost_documents
        else each
        for row, each in enumerate(documents)
    ]
    searcher = build(tmp_path, garbled, bm25_config, "garbled")
    path = run_agent(tmp_path / "garbled.jsonl.run", questions, searcher, right_with_evidence)
    report = explain(path, questions, searcher, searcher.chunks)
    all_gone = [
        each for each in questions if set(each.metadata.supporting_doc_ids or ()) <= lost_documents
    ]
    assert report.causes[Cause.INDEX_MISSES].answers == len(all_gone) >= len(blind)
    assert Cause.NOT_IN_CORPUS not in report.causes


def test_planted_format_errors_are_lost_to_the_metric_in_their_shares(
    real_data: Path, tmp_path: Path, bm25_config: IndexConfig
) -> None:
    folder = real_data / "2wikimultihopqa"
    questions = known_questions(folder)
    closed = {"yes", "no"}
    questions = [each for each in questions if each.golden_answers[0].lower() not in closed]
    searcher = build(tmp_path, read_documents(folder / "corpus.jsonl.gz"), bm25_config)
    generator = random.Random(SEED)
    kinds = {
        each.id: generator.choices(["words", "tags", "wrong", ""], (3, 2, 2, 3))[0]
        for each in questions
    }
    path = run_agent(
        tmp_path / "run.jsonl", questions, searcher, lambda each, _: each.golden_answers[0]
    )
    lines: list[str] = []
    for line in path.read_text().splitlines():
        rollout = json.loads(line)
        match kinds[rollout["question_id"]]:
            case "words":
                rollout["answer"] = f"The answer must be {rollout['answer']}, I believe"
            case "tags":
                text = f"So it is {rollout['answer']} in the end."
                rollout["messages"][-1]["content"] = text
                rollout |= {"answer": "", "stop_reason": "no_answer_tag"}
            case "wrong":
                rollout["answer"] = "Xyzzy"
            case _:
                pass
        lines.append(json.dumps(rollout))
    path.write_text("\n".join(lines) + "\n")

    report = explain(path, questions, searcher, searcher.chunks)
    counts = {kind: list(kinds.values()).count(kind) for kind in ("words", "tags", "wrong")}
    details = report.causes[Cause.METRIC].details
    assert details["format"] == counts["tags"]
    assert details["extra words"] == counts["words"]
    others = sum(
        entry.answers for cause, entry in report.causes.items() if cause is not Cause.METRIC
    )
    assert others == counts["wrong"]


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
    real_data: Path, tmp_path: Path, bm25_config: IndexConfig, retriever: str
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
    config = bm25_config
    if retriever == "hybrid":
        from deepsearch_rl.presets import load_preset  # noqa: PLC0415

        section = load_preset("retrieve").value("index")
        values = {name: section[name] for name in IndexConfig.model_fields}
        values["encoder"]["dimension"] = 64
        config = IndexConfig.model_validate(values)
    build_index(tmp_path / "chunks" / "news.jsonl", tmp_path / "index", config, SEED)
    searcher = open_index(tmp_path / "index", retriever=retriever)

    path = run_agent(tmp_path / "run.jsonl", questions, searcher, right_with_evidence)
    report = explain(path, questions, searcher, searcher.chunks)
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
