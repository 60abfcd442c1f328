"""What every retriever promises, whichever it is."""

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Chunk
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.hybrid import FEATURES
from deepsearch_rl.search.manifest import (
    TERMS_FOLDER,
    IndexConfig,
    read_manifest,
    write_manifest,
)
from deepsearch_rl.search.own_retriever import RETRIEVERS
from deepsearch_rl.search.ranking import FusionWeights
from deepsearch_rl.search.rows import ChunkStore, Filter
from deepsearch_rl.search.searcher import Searcher, open_index
from deepsearch_rl.search.sentence_terms import write_sentence_terms
from tests.chunks import make_chunk
from tests.settings import INDEX

WORDS = [
    "comet",
    "lander",
    "probe",
    "river",
    "city",
    "capital",
    "country",
    "moon",
    "orbit",
    "ship",
    "island",
    "port",
]
BM25 = {
    "builtin": INDEX.bm25.model_dump(),
    "lucene": {"engine": "lucene", "k1": 0.9, "b": 0.4, "heap_mb": 256},
}
LEARNT = "learnt hybrid"
TWINS = (3, 17, 20)
"""Rows with the same text."""


def text(row: int) -> str:
    return (
        "twin words"
        if row in TWINS
        else f"{WORDS[row % 12]} {WORDS[(row * 5 + 1) % 12]} {WORDS[(row * 7) % 12]} n{row}"
    )


def chunk(row: int) -> Chunk:
    """Every third chunk is of another source; all but every fifth have a day of May."""
    dated = {"published_at": f"2024-05-{row + 1:02}"} if row % 5 else {}
    return make_chunk(f"T{row}\n{text(row)}", f"c{row}", source=f"paper {row % 3}", **dated)


@pytest.fixture(
    scope="module",
    params=[
        *(("builtin", name) for name in (*RETRIEVERS, LEARNT)),
        pytest.param(("lucene", "bm25"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def searcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    engine, retriever = request.param
    if engine == "lucene":
        pytest.importorskip("jnius_config", reason="the extra pyserini is not installed")
    folder: Path = tmp_path_factory.mktemp("contract")
    write_jsonl(folder / "c.jsonl", map(chunk, range(24)))
    config = INDEX.model_dump() | {"bm25": BM25[engine]}
    config["encoder"]["dimension"] = 16
    config["fusion"] |= {"depth": 20, "dense_weight": 1.0}
    build_index(folder / "c.jsonl", folder / "index", IndexConfig.model_validate(config), seed=0)
    if retriever == LEARNT:
        add_weights(folder / "index", folder / "c.jsonl")
        return open_index(folder / "index", folder / "c.jsonl", "hybrid")
    return open_index(folder / "index", folder / "c.jsonl", retriever)


def add_weights(index: Path, chunks: Path) -> None:
    """Make an index as if its hybrid had learnt, as learning needs more than 24 chunks say."""
    write_sentence_terms(ChunkStore(chunks, index / "rows"), index / TERMS_FOLDER)
    learnt = FusionWeights(
        ranking="learned", weights=dict.fromkeys(FEATURES, 1.0), questions=9, held_out={}
    )
    write_manifest(index, read_manifest(index).model_copy(update={"fusion_weights": learnt}))


def test_hits_are_distinct_rows_best_first_with_their_own_chunks(searcher: Searcher) -> None:
    for hits in searcher.find_hits(["comet lander", "river ship"], 10):
        assert hits
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert len({hit.row for hit in hits}) == len(hits)
        assert all(hit.chunk.id == f"c{hit.row}" for hit in hits)


def test_more_hits_than_chunks_are_never_given(searcher: Searcher) -> None:
    [hits] = searcher.find_hits(["comet"], 1000)
    assert 1 <= len(hits) <= 24


@pytest.mark.parametrize("query", ["", "   ", "?!", "the of and", "qqq"])
def test_a_query_that_says_nothing_known_finds_nothing(searcher: Searcher, query: str) -> None:
    assert searcher.find_hits([query], 5) == [[]]


def test_no_queries_give_no_answers(searcher: Searcher) -> None:
    assert searcher.find_hits([], 5) == []


def test_equal_chunks_are_ordered_by_row(searcher: Searcher) -> None:
    [hits] = searcher.find_hits(["twin words"], 3)
    assert [hit.row for hit in hits] == list(TWINS)


def test_an_answer_does_not_depend_on_the_queries_beside_it(searcher: Searcher) -> None:
    queries = [f"{word} {other}" for word in WORDS for other in WORDS]
    together = [[hit.row for hit in hits] for hits in searcher.find_hits(queries, 3)]
    alone = [[hit.row for hit in searcher.find_hits([query], 3)[0]] for query in queries]
    assert together == alone


def test_a_smaller_top_k_gives_the_head_of_a_larger_one(searcher: Searcher) -> None:
    [[*three], [*ten]] = (searcher.find_hits(["comet probe"], top_k)[0] for top_k in (3, 10))
    assert [hit.row for hit in three] == [hit.row for hit in ten[:3]]


def test_a_mask_leaves_the_best_allowed_rows_in_their_order(searcher: Searcher) -> None:
    allowed_N = np.zeros(24, dtype=np.bool_)
    allowed_N[5:19:2] = True
    for query in ("comet lander", "twin words", "river ship island"):
        [everything] = searcher.retriever.search([query], 24)
        expected = [row for row in everything.rows_K.tolist() if allowed_N[row]]
        for top_k in (1, 3, 24):
            [masked] = searcher.retriever.search([query], top_k, allowed_N)
            assert masked.rows_K.tolist() == expected[:top_k]


def test_a_mask_that_allows_nothing_finds_nothing(searcher: Searcher) -> None:
    [ranking] = searcher.retriever.search(["comet"], 3, np.zeros(24, dtype=np.bool_))
    assert len(ranking.rows_K) == len(ranking.scores_K) == 0


@pytest.mark.parametrize(
    ("where", "allowed"),
    [
        (Filter(source="paper 1"), set(range(1, 24, 3))),
        (
            Filter(after=date(2024, 5, 4), before=date(2024, 5, 18)),
            {row for row in range(3, 18) if row % 5},
        ),
        (Filter(source="paper 0", before=date(2024, 5, 7)), {3, 6}),
        (Filter(source="paper 3"), set()),
    ],
)
def test_filters_allow_what_matches_and_nothing_else(
    searcher: Searcher, where: object, allowed: object
) -> None:
    query = " ".join(WORDS)
    [everything], [filtered] = (
        searcher.find_hits([query], 24),
        searcher.find_hits([query], 24, where),
    )
    assert {hit.row for hit in filtered} == {hit.row for hit in everything} & allowed
    assert len({hit.row for hit in everything}) > len(filtered)


def test_a_filter_reaches_below_the_ranks_that_were_asked_for(searcher: Searcher) -> None:
    [hits] = searcher.find_hits(["twin words"], 1, Filter(source="paper 2"))
    assert [hit.row for hit in hits] == [17]
