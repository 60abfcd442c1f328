"""Published questions of MultiHop-RAG and HotpotQA with their own evidence: how many of them the audit keeps."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.data import chunk_documents, gzip_rows, read_documents
from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.records import Chunk, ChunkMetadata
from deepsearch_rl.data.flashrag import read_documents as read_paragraphs
from deepsearch_rl.data.question_writing.audit import AuditConfig, Auditor
from deepsearch_rl.data.question_writing.drafts import Draft
from deepsearch_rl.data.question_writing.links import PassageGroup
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.gold import without_space
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.searcher import open_index

pytestmark = [pytest.mark.realdata, pytest.mark.timeout(300)]
TYPES = {
    "inference_query": "bridge",
    "comparison_query": "comparison",
    "temporal_query": "temporal",
    "null_query": "unanswerable",
}
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z\"'(0-9])")
"""Where a sentence ends, as HotpotQA mostly splits its paragraphs."""


class Reader:
    """Answers a question right where all of its passages are shown, and says otherwise that there is no answer."""

    def __init__(self, drafts: list[Draft]) -> None:
        self._drafts = {draft.question: draft for draft in drafts}
        self.tokens = 0

    def ask_all(self, prompts: list[tuple[str, int]]) -> list[str]:
        return [self._answer(prompt) for prompt, _ in prompts]

    def _answer(self, prompt: str) -> str:
        passages, _, rest = prompt.partition("Question: ")
        draft = self._drafts[rest.partition("\n\nAnswer ")[0]]
        shown = [chunk.contents in passages for chunk, _ in draft.proofs]
        return draft.golden_answer if shown and all(shown) else INSUFFICIENT


def drafts_of(folder: Path, chunks: list[Chunk]) -> list[Draft]:
    """Return the questions whose evidence the data has, and those that have no answer."""
    of_document: dict[str, list[Chunk]] = {}
    for chunk in chunks:
        of_document.setdefault(chunk.metadata.doc_id, []).append(chunk)

    drafts: list[Draft] = []
    for row in gzip_rows(folder / "queries.jsonl.gz"):
        kind = TYPES[row["question_type"]]
        proofs: list[tuple[Chunk, str]] = []
        for evidence in row["evidence_list"] or ():
            fact = without_space(evidence["fact"])
            own = of_document.get(evidence["doc_id"], [])
            holding = [chunk for chunk in own if fact in without_space(chunk.contents)]
            proofs += [(chunk, evidence["fact"]) for chunk in holding[:1]]

        if not proofs and kind != "unanswerable":
            continue
        passages = {chunk.id: chunk for chunk, _ in proofs}
        group = PassageGroup(tuple(passages.values()), (), "val")
        drafts.append(Draft(group, kind, row["query"], row["answer"], tuple(proofs)))

    return drafts


def hotpotqa_drafts(folder: Path, chunks: Sequence[Chunk]) -> list[Draft]:
    """Return the questions of whose supporting sentences the corpus has all, by title and place."""
    of_title = {chunk.title: chunk for chunk in chunks}
    drafts: list[Draft] = []

    for row in gzip_rows(folder / "dev.jsonl.gz"):
        if row["gold_in_corpus"] != "all":
            continue

        proofs: list[tuple[Chunk, str]] = []
        for title, place in row["supporting_facts"]:
            chunk = of_title.get(title)
            sentences = _SENTENCE_END.split(chunk.text) if chunk else []
            if chunk and place < len(sentences):
                proofs.append((chunk, sentences[place]))

        if len(proofs) == len(row["supporting_facts"]):
            passages = {chunk.id: chunk for chunk, _ in proofs}
            bundle = PassageGroup(tuple(passages.values()), (), "val")
            answer = row["golden_answers"][0]
            drafts.append(Draft(bundle, row["type"], row["question"], answer, tuple(proofs)))

    return drafts


def audited(drafts: list[Draft], path: Path, folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Audit drafts about the passages of a file; return how many there are and how many are kept, by type."""
    section = load_preset("retrieve").value("index")
    values = {name: section[name] for name in IndexConfig.model_fields} | {"encoder": None}
    build_index(path, folder / "index", IndexConfig.model_validate(values), 0)

    config = AuditConfig(answer_words=10, similarity=0.8, findable_in=50, samples=1, agreeing=1)
    searcher = open_index(folder / "index", path)
    auditor = Auditor(config, searcher, Reader(drafts))  # pyright: ignore[reportArgumentType]
    counts: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    for draft, reason in zip(drafts, auditor.check(drafts), strict=True):
        counts[draft.type] += 1
        kept[draft.type] += reason is None
        if reason is not None:
            rejected[f"{draft.type}, {reason}"] += 1

    for kind in sorted(counts):
        print(f"{kind}: {kept[kind]} of {counts[kind]} kept")
    print(f"kept in all: {kept.total()} of {counts.total()}; rejected: {dict(rejected)}")
    return counts, kept


@pytest.mark.nightly
def test_the_audit_keeps_nine_of_ten_published_questions(real_data: Path, tmp_path: Path) -> None:
    folder = real_data / "multihoprag"
    path = chunk_documents(read_documents(folder), tmp_path, "sentences", 256)
    drafts = drafts_of(folder, list(read_jsonl(path, Chunk)))
    counts, kept = audited(drafts, path, tmp_path)
    assert counts.total() > 600
    assert kept["bridge"] >= 0.88 * counts["bridge"]
    assert all(kept[kind] >= 0.95 * counts[kind] for kind in set(counts) - {"bridge"})
    assert kept.total() >= 0.95 * counts.total()


@pytest.mark.nightly
def test_the_audit_keeps_nine_of_ten_questions_of_hotpotqa(real_data: Path, tmp_path: Path) -> None:
    folder = real_data / "hotpotqa"
    chunks: list[Chunk] = []
    for document in read_paragraphs(folder / "corpus.jsonl.gz"):
        metadata = ChunkMetadata.of(document, 1, 0)
        chunks.append(Chunk(id=document.id, contents=document.contents, metadata=metadata))
    path = tmp_path / "paragraphs.jsonl"
    write_jsonl(path, chunks)

    counts, kept = audited(hotpotqa_drafts(folder, chunks), path, tmp_path)
    assert counts.total() > 1600
    assert all(kept[kind] >= 0.9 * counts[kind] for kind in counts)
