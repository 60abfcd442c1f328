"""A corpus in which only the named source tells the right article from one that says more of the same."""

import random
import shutil
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Chunk, Evidence, Question, QuestionMetadata
from deepsearch_rl.search import learning
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.gold import with_gold
from deepsearch_rl.search.hybrid import FEATURES
from deepsearch_rl.search.manifest import TERMS_FOLDER, IndexConfig, read_manifest
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Searcher, open_finder, open_index
from tests.chunks import make_chunk

TOPICS = [
    "comets", "rivers", "ships", "bridges", "castles", "forests", "deserts", "islands", "engines", "violins",
    "glaciers", "volcanoes", "markets", "harbours", "museums", "orchards", "tunnels", "windmills", "lanterns", "clocks",
]  # fmt: skip
BM25 = FEATURES.index("bm25")
QUIET, LOUD = "Quiet Gazette", "Loud Herald"


def article(topic: str, source: str) -> Chunk:
    said = (
        f"A report on {topic}."
        if source == QUIET
        else f"More {topic}, {topic} and {topic}. Nothing but {topic}."
    )
    name = f"{source} {topic}"
    return make_chunk(f"News\n{said}", name, name, source=source)


CHUNKS = [article(topic, source) for topic in TOPICS for source in (LOUD, QUIET)]
QUESTIONS = [
    Question(
        id=topic,
        question=f"What does the {QUIET} say about {topic}?",
        golden_answers=("x",),
        metadata=QuestionMetadata(evidence_list=(Evidence(fact=f"A report on {topic}."),)),
    )
    for topic in TOPICS
]


@pytest.fixture(scope="module")
def config(index_config: IndexConfig) -> IndexConfig:
    values = index_config.model_dump()
    values["fusion"]["learning"] = {"split": "train", "questions": 100, "ridge": 0.001, "folds": 5}
    return IndexConfig.model_validate(values)


def build(
    folder: Path, chunks: list[Chunk], config: IndexConfig, questions: list[Question]
) -> Path:
    write_jsonl(folder / "c.jsonl", chunks)
    build_index(folder / "c.jsonl", folder / "index", config, seed=0, questions=questions)
    return folder / "index"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, config: IndexConfig) -> Path:
    return build(tmp_path_factory.mktemp("learnt"), CHUNKS, config, QUESTIONS)


@pytest.fixture(scope="module")
def hybrid(index: Path) -> Searcher:
    return open_index(index, retriever="hybrid")


def found(searcher: Searcher, query: str, top_k: int = 5, where: Filter | None = None) -> list[str]:
    [hits] = searcher.find_hits([query], top_k, where)
    return [hit.chunk.id for hit in hits]


def test_learning_puts_the_named_source_first(index: Path, hybrid: Searcher) -> None:
    learnt = read_manifest(index).fusion_weights
    assert learnt.ranking == "learned"
    assert learnt.held_out["learned"]["mrr@10"] == 1.0 > learnt.held_out["bm25"]["mrr@10"]
    assert found(hybrid, f"What does the {QUIET} say about comets?")[0] == f"{QUIET} comets"


def test_the_weights_in_the_manifest_are_those_that_rank(index: Path, tmp_path: Path) -> None:
    shutil.copytree(index.parent, tmp_path / "copy")
    manifest = tmp_path / "copy" / "index" / "manifest.json"
    learnt = read_manifest(index).fusion_weights
    turned = learnt.model_copy(
        update={"weights": {name: -value for name, value in learnt.weights.items()}}
    )
    built = read_manifest(index).model_copy(update={"fusion_weights": turned})
    manifest.write_text(built.model_dump_json())
    upside_down = open_index(manifest.parent, retriever="hybrid")
    assert found(upside_down, f"What does the {QUIET} say about comets?")[0] != f"{QUIET} comets"


def test_where_learning_does_not_help_the_hybrid_is_the_better_half(
    tmp_path: Path, config: IndexConfig
) -> None:
    asked = [
        question.model_copy(
            update={"question": f"News about {question.id}?", "metadata": loud(question.id)}
        )
        for question in QUESTIONS
    ]
    folder = build(tmp_path, CHUNKS, config, asked)
    learnt = read_manifest(folder).fusion_weights
    assert learnt.ranking != "learned"
    assert not (folder / TERMS_FOLDER).exists()
    queries = [question.question for question in asked]
    halves = [
        [
            [hit.row for hit in hits]
            for hits in open_index(folder, retriever=name).find_hits(queries, 5)
        ]
        for name in ("hybrid", learnt.ranking)
    ]
    assert halves[0] == halves[1]


def loud(topic: str) -> QuestionMetadata:
    return QuestionMetadata(evidence_list=(Evidence(fact=f"Nothing but {topic}."),))


def test_filters_hold_for_the_candidates_within_a_source_too(hybrid: Searcher) -> None:
    query = f"What does the {QUIET} say about comets?"
    assert found(hybrid, query, where=Filter(source=LOUD))[0] == f"{LOUD} comets"
    assert all(name.startswith(LOUD) for name in found(hybrid, query, 40, Filter(source=LOUD)))
    assert found(hybrid, query, where=Filter(source="no such paper")) == []


def test_what_a_half_did_not_list_scores_nothing_unless_its_list_was_cut(
    index: Path, config: IndexConfig
) -> None:
    finder = open_finder(index, config, index / TERMS_FOLDER)
    complete, cut = finder.find(["comets", "news"], 1)
    listed = [CHUNKS[row].id for row in complete.rows_C[complete.features_CF[:, BM25] > 0].tolist()]
    assert sorted(listed) == sorted(f"{source} comets" for source in (LOUD, QUIET))
    assert len(complete.rows_C) > len(listed)  # dense lists more
    assert len(cut.rows_C) > config.fusion.depth
    assert (cut.features_CF[:, BM25] > 0).all()


def test_questions_are_gathered_together_as_one_by_one(
    index: Path, config: IndexConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = open_finder(index, config, index / TERMS_FOLDER)
    monkeypatch.setattr(learning, "BATCH_QUESTIONS", 7)
    gathered = learning.gather(finder, CHUNKS, with_gold(QUESTIONS))
    for question, example in zip(QUESTIONS, gathered, strict=True):
        [alone] = finder.find([question.question], learning.RANKED)
        assert example.candidates.rows_C.tolist() == alone.rows_C.tolist()
        assert example.candidates.features_CF.tolist() == alone.features_CF.tolist()
        assert sum(map(bool, example.items_C)) == 1


def test_every_match_is_found_once_and_nothing_by_an_empty_query(hybrid: Searcher) -> None:
    names = found(hybrid, f"{QUIET} comets rivers", 1000)
    assert len(names) == len(set(names))
    assert {
        f"{source} {topic}" for source in (QUIET, LOUD) for topic in ("comets", "rivers")
    } <= set(names)
    assert found(hybrid, "") == found(hybrid, "?!") == []


def test_the_order_of_the_chunks_does_not_matter(
    hybrid: Searcher, tmp_path: Path, config: IndexConfig
) -> None:
    shuffled = CHUNKS.copy()
    random.Random(1).shuffle(shuffled)
    again = build(tmp_path, shuffled, config, QUESTIONS)
    other = open_index(again, retriever="hybrid")
    for question in QUESTIONS:
        assert found(hybrid, question.question, 2) == found(other, question.question, 2)


def test_equal_chunks_are_ordered_by_row(tmp_path: Path, config: IndexConfig) -> None:
    twins = [
        chunk.model_copy(update={"id": f"{chunk.id} {copy}"})
        for copy in range(3)
        for chunk in CHUNKS
    ]
    twice = open_index(build(tmp_path, twins, config, QUESTIONS), retriever="hybrid")
    query = f"What does the {QUIET} say about comets?"
    assert found(twice, query, 3) == [f"{QUIET} comets {copy}" for copy in range(3)]


def test_an_index_without_its_terms_is_refused(index: Path, tmp_path: Path) -> None:
    shutil.copytree(index.parent, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "index" / TERMS_FOLDER)
    with pytest.raises(ArtifactError, match=TERMS_FOLDER):
        open_index(tmp_path / "copy" / "index", retriever="hybrid")
