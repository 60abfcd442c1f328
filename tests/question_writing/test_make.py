"""Documents become audited questions: every planted fault is found, good questions are kept, splits share nothing."""

from collections import Counter
from pathlib import Path

import pytest

from deepsearch_rl.core.files import read_json, read_jsonl
from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.core.records import Document, Question
from deepsearch_rl.corpora.chunking.chunking import ChunkConfig
from deepsearch_rl.corpora.download.download import DownloadConfig, download
from deepsearch_rl.corpora.world.questions import generate
from deepsearch_rl.endpoints.remote import RemoteConfig
from deepsearch_rl.indexing.build import IndexSection
from deepsearch_rl.question_writing.audit import AuditConfig, Funnel
from deepsearch_rl.question_writing.make import Rejected, WritingConfig, make_questions
from deepsearch_rl.question_writing.model_calls import WriterConfig
from tests.conftest import ROOT
from tests.evaluation.chat import KEY, serve_chat
from tests.question_writing.scripted_writer import FAULTS, ScriptedWriter
from tests.worlds import smoke

__all__ = ["smoke"]

QUESTIONS = 120
SPLITS = {"train": 0.6, "dev": 0.2, "val": 0.2}


def config_at(base_url: str, **changes: object) -> WritingConfig:
    writer = WriterConfig(
        endpoint=RemoteConfig(base_url=base_url, model="writer", api_key_variable="WRITER_KEY"),
        temperature=0.7,
        max_tokens=1000,
        timeout_s=20,
        concurrency=16,
    )
    audit = AuditConfig(answer_words=10, similarity=0.8, findable_in=20, samples=1, agreeing=1)
    config = WritingConfig(
        documents={},
        writer=writer,
        budget_tokens=10**9,
        questions=QUESTIONS,
        splits=SPLITS,
        audit=audit,
    )
    return config.model_copy(update=changes)


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory, smoke: Profile) -> Path:
    """The in-domain documents of the generated world as text and Markdown files; a text file has no title."""
    world = smoke.section("download", DownloadConfig).world
    assert world is not None
    folder = tmp_path_factory.mktemp("documents")
    for number, document in enumerate(generate(world, 0).corpora["world"]):
        if number % 4:
            (folder / f"{number:04}.md").write_text(f"# {document.title}\n\n{document.text}\n")
        else:
            (folder / f"{number:04}.txt").write_text(f"{document.text}\n")

    return folder


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRITER_KEY", KEY)


def make(folder: Path, config: WritingConfig, smoke: Profile, work: Path, out: Path) -> Funnel:
    index = smoke.section("index", IndexSection).of("documents")
    bm25 = index.model_copy(update={"encoder": None})
    return make_questions(folder, config, smoke.section("chunk", ChunkConfig), bm25, 0, work, out)


def read_splits(out: Path) -> dict[str, list[Question]]:
    return {
        split: list(read_jsonl(out / "questions" / f"{split}.jsonl", Question)) for split in SPLITS
    }


@pytest.mark.usefixtures("key")
def test_every_planted_fault_is_found_and_good_questions_are_kept(
    documents: Path, smoke: Profile, tmp_path: Path
) -> None:
    writer = ScriptedWriter(share=0.5)
    out = tmp_path / "out"
    with serve_chat(writer.reply) as chat:
        config = config_at(chat.endpoint.base_url)
        funnel = make(documents, config, smoke, tmp_path / "work", out)

    kept = {question.question for of_split in read_splits(out).values() for question in of_split}
    rejected = {each.question: each for each in read_jsonl(out / "rejected.jsonl", Rejected)}
    assert funnel.kept == len(kept)
    assert funnel.drafts == funnel.kept + sum(funnel.rejected.values())
    assert funnel.model_dump(mode="json") == read_json(out / "audit.json")

    # Questions that were not reached have no verdict
    judged = {text: each for text, each in writer.planted.items() if text in kept | rejected.keys()}
    good = {text for text, each in judged.items() if not each.fault}
    assert len(good & kept) >= 0.9 * len(good)
    bad = {text: each.fault for text, each in judged.items() if each.fault}
    assert set(bad.values()) == set(FAULTS)
    for fault in FAULTS:
        planted = [text for text in bad if bad[text] == fault]
        found = [text for text in planted if text in rejected]
        assert len(found) >= 0.95 * len(planted), fault

    named = [text for text in bad if text in rejected and rejected[text].reason == bad[text]]
    assert len(named) >= 0.9 * len(rejected)


@pytest.mark.usefixtures("key")
def test_val_shares_no_document_with_train_and_every_fact_stands_in_its_document(
    documents: Path, smoke: Profile, tmp_path: Path
) -> None:
    writer = ScriptedWriter(share=0.0)
    with serve_chat(writer.reply) as chat:
        make(
            documents, config_at(chat.endpoint.base_url), smoke, tmp_path / "work", tmp_path / "out"
        )

    corpus = {each.id: each for each in read_jsonl(tmp_path / "out" / "corpus.jsonl", Document)}
    documents_of: dict[str, set[str]] = {}
    hops: Counter[int] = Counter()
    for split, questions in read_splits(tmp_path / "out").items():
        assert questions
        documents_of[split] = set()
        for question in questions:
            evidence = question.metadata.evidence_list or ()
            hops[len({fact.doc_id for fact in evidence})] += 1
            for fact in evidence:
                assert fact.doc_id is not None
                assert fact.fact in corpus[fact.doc_id].contents
                documents_of[split].add(fact.doc_id)

    # As the profile `own` reads them
    own = load_profile(ROOT / "profiles" / "own" / "params.yaml")
    made = {"download.folder.root": str(tmp_path / "out")}
    config = own.with_overrides(made).section("download", DownloadConfig)
    counts = download(config, 0, tmp_path / "corpora", tmp_path / "questions")
    assert counts.keys() == {"own", "own/train", "own/dev", "own/val"}
    for split, questions in read_splits(tmp_path / "out").items():
        assert (
            list(read_jsonl(tmp_path / "questions" / "own" / f"{split}.jsonl", Question))
            == questions
        )

    assert not documents_of["train"] & documents_of["val"]
    assert not documents_of["dev"] & (documents_of["train"] | documents_of["val"])
    assert set(hops) == {1, 2, 3}


@pytest.mark.usefixtures("key")
def test_a_spent_budget_stops_and_a_larger_one_asks_only_what_is_new(
    documents: Path, smoke: Profile, tmp_path: Path
) -> None:
    def written(budget: int, questions: int) -> tuple[Funnel, int]:
        config = config_at(base_url, budget_tokens=budget, questions=questions)
        before = len(chat.requests)
        funnel = make(documents, config, smoke, tmp_path / "work", tmp_path / "out")
        return funnel, len(chat.requests) - before

    writer = ScriptedWriter(share=0.3)
    with serve_chat(writer.reply) as chat:
        base_url = chat.endpoint.base_url
        small, asked = written(600, 10**6)
        assert small.stopped_by == "budget"
        assert small.tokens == 10 * asked  # what the endpoint counts
        first = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.json*")}
        assert written(600, 10**6) == (small, 0)
        again = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.json*")}
        assert again == first

        larger, more = written(10**9, 40)
        assert larger.stopped_by == "enough"
        assert larger.tokens == 10 * (asked + more)
        assert larger.kept >= 40
