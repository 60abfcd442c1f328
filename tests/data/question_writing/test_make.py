"""Documents become audited questions: every planted fault is found, good questions are kept, splits share nothing."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.chat.endpoint import RemoteConfig, write_endpoint
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import read_json, read_jsonl, write_json
from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.core.records import Document, Question
from deepsearch_rl.data.chunking import ChunkConfig, chunk_corpora
from deepsearch_rl.data.download import DownloadConfig, download
from deepsearch_rl.data.question_writing.audit import AuditConfig, Funnel
from deepsearch_rl.data.question_writing.make import WritingConfig, make_questions
from deepsearch_rl.data.question_writing.model_calls import WriterConfig
from deepsearch_rl.evaluate.evaluate_model import evaluate_model
from deepsearch_rl.evaluate.evaluation_plan import Evaluation
from deepsearch_rl.search.build import IndexSection, build_index
from tests.conftest import ROOT
from tests.data.question_writing.planted_faults import audit_figures, require_found, write_world
from tests.data.question_writing.scripted_writer import ScriptedModel, ScriptedWriter
from tests.evaluate.chat import KEY, says, serve_chat
from tests.search_servers import serve_index_here
from tests.worlds import smoke

pytestmark = pytest.mark.slow

__all__ = ["smoke"]

QUESTIONS = 120
SPLITS = {"train": 0.6, "dev": 0.2, "val": 0.2}


def config_at(base_url: str, **changes: object) -> WritingConfig:
    folder = Path(tempfile.mkdtemp())
    remote = RemoteConfig(base_url=base_url, model="writer", api_key_variable="WRITER_KEY")
    write_endpoint(remote, folder)
    writer = WriterConfig(
        endpoint=str(folder),
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
    """The in-domain documents of the generated world as files."""
    folder = tmp_path_factory.mktemp("documents")
    write_world(smoke, folder)
    return folder


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRITER_KEY", KEY)


def make(folder: Path, config: WritingConfig, smoke: Profile, work: Path, out: Path) -> Funnel:
    index = smoke.section("index", IndexSection).of("documents")
    bm25 = index.model_copy(update={"encoder": None})
    return make_questions(
        folder,
        config,
        smoke.section("chunk", ChunkConfig),
        bm25,
        0,
        work,
        work / "replies.jsonl",
        out,
    )


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

    assert funnel.kept == sum(len(of_split) for of_split in read_splits(out).values())
    assert funnel.drafts == funnel.kept + sum(funnel.rejected.values())
    assert funnel.model_dump(mode="json") == read_json(out / "audit.json")

    figures = audit_figures(writer.planted, out)
    require_found(figures, least=5)
    named = sum(each.named for each in figures.kinds.values())
    assert named >= 0.9 * sum(funnel.rejected.values())


@pytest.fixture(scope="module")
def written(
    documents: Path, smoke: Profile, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ScriptedModel, Path]:
    """A model that wrote questions without any fault, and the folder that they were written to."""
    model = ScriptedModel(share=0.0)
    folder = tmp_path_factory.mktemp("written")
    with serve_chat(model.reply) as chat, pytest.MonkeyPatch.context() as environment:
        environment.setenv("WRITER_KEY", KEY)
        make(documents, config_at(chat.endpoint.base_url), smoke, folder / "work", folder / "out")

    return model, folder / "out"


def own_profile(made: Path) -> Profile:
    """The profile `own`, which reads the questions of a folder."""
    own = load_profile(ROOT / "profiles" / "own" / "params.yaml")
    prompt = str(ROOT / own.value("agent.prompt"))
    return own.with_overrides({"download.folder.root": str(made), "agent.prompt": prompt})


def test_val_shares_no_document_with_train_and_every_fact_stands_in_its_document(
    written: tuple[ScriptedModel, Path], tmp_path: Path
) -> None:
    _, made = written
    corpus = {each.id: each for each in read_jsonl(made / "corpus.jsonl", Document)}
    documents_of: dict[str, set[str]] = {}
    hops: Counter[int] = Counter()
    for split, questions in read_splits(made).items():
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
    config = own_profile(made).section("download", DownloadConfig)
    counts = download(config, 0, tmp_path / "corpora", tmp_path / "questions")
    assert counts.keys() == {"own", "own/train", "own/dev", "own/val"}
    for split, questions in read_splits(made).items():
        assert (
            list(read_jsonl(tmp_path / "questions" / "own" / f"{split}.jsonl", Question))
            == questions
        )

    assert not documents_of["train"] & documents_of["val"]
    assert not documents_of["dev"] & (documents_of["train"] | documents_of["val"])
    assert set(hops) == {1, 2, 3}


@pytest.mark.usefixtures("key")
def test_a_model_is_evaluated_on_the_questions_with_its_controls(
    written: tuple[ScriptedModel, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, made = written
    sets = {"own": {"questions": None, "samples": 1, "greedy": 0, "controls": 3}}
    changes = {"evaluate.sets": sets, "evaluate.draws": 100, "retrieval.retriever": "bm25"}
    own = own_profile(made).with_overrides({**changes, "evaluate.random_passages": True})
    download(
        own.section("download", DownloadConfig), 0, tmp_path / "corpora", tmp_path / "questions"
    )
    chunk_corpora(tmp_path / "corpora", tmp_path / "chunks", own.section("chunk", ChunkConfig))
    index = own.section("index", IndexSection).of("own").model_copy(update={"encoder": None})
    build_index(tmp_path / "chunks" / "own.jsonl", tmp_path / "index" / "own", index, 0)

    searching = "deepsearch_rl.evaluate.evaluate_model.serve_index"
    monkeypatch.setattr(searching, serve_index_here)
    with serve_chat(model.reply) as chat:
        address = {"base_url": chat.endpoint.base_url, "model": "scripted"}
        write_json(tmp_path / "endpoint.json", address | {"api_key_variable": "WRITER_KEY"})
        out = tmp_path / "out"
        setting = Evaluation.of(own)
        evaluation = evaluate_model("api", tmp_path, setting, tmp_path, out, tmp_path / "work")

    [row] = evaluation.rows
    assert (row.dataset, row.n, row.failures) == ("own", len(read_splits(made)["val"]), {})
    assert row.f1 >= 0.5
    assert {name: control.f1 for name, control in row.controls.items()} == {
        "no_search": 0.0,
        "random_passage": 0.0,
        "gold_passage": 1.0,
    }


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
        small, asked = written(1500, 10**6)
        assert small.stopped_by == "budget"
        assert small.tokens == 10 * asked  # what the endpoint counts
        first = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.json*")}
        assert written(1500, 10**6) == (small, 0)
        again = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.json*")}
        assert again == first

        larger, more = written(10**9, 40)
        assert larger.stopped_by == "enough"
        assert larger.tokens == 10 * (asked + more)
        assert larger.kept >= 40


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("count", [1, 3, 5])
def test_too_few_documents_for_the_splits_are_refused_before_anything_is_asked(
    smoke: Profile, tmp_path: Path, count: int
) -> None:
    write_texts(tmp_path / "documents", count)
    splits = {"train": 0.7, "dev": 0.1, "val": 0.2}
    with serve_chat(ScriptedWriter(share=0.0).reply) as chat:
        config = config_at(chat.endpoint.base_url, splits=splits)
        with pytest.raises(ConfigError, match=rf"{count} documents are too few.*for .*dev.*20 are"):
            make(tmp_path / "documents", config, smoke, tmp_path / "work", tmp_path / "out")
    assert chat.requests == []
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    ("quoted", "questions", "problem"),
    [
        ("was built", 50, r"make_questions\.min_train is 100: of \d+ drafts .*Add documents"),
        (
            "was built",
            1,
            r"audit for \w+, \w+: of 1 drafts 1 passed.*Raise make_questions\.questions",
        ),
        ("is built", 50, r"audit for train, dev, val: .*\d+ not_verbatim; .*Add documents"),
    ],
)
def test_too_few_questions_are_refused_with_what_was_rejected(
    smoke: Profile, tmp_path: Path, quoted: str, questions: int, problem: str
) -> None:
    writer = ScriptedWriter(share=0.0)

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        return says(writer.reply(body)["content"].replace("was built", quoted))

    write_texts(tmp_path / "documents", 20)
    with serve_chat(reply) as chat:
        config = config_at(chat.endpoint.base_url, questions=questions, min_train=100)
        one_by_one = config.writer.model_copy(update={"concurrency": 1})
        config = config.model_copy(update={"writer": one_by_one})
        with pytest.raises(ArtifactError, match=problem):
            make(tmp_path / "documents", config, smoke, tmp_path / "work", tmp_path / "out")


def write_texts(folder: Path, count: int) -> None:
    """Write documents that share no rare term."""
    folder.mkdir()
    for number in range(count):
        text = f"# Place {number}\nThe tower of it was built by Anna Nova{number}x.\n"
        (folder / f"{number}.md").write_text(text, encoding="utf-8")
