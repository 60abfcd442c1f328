import gzip
import json
import math
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import bm25s
import numpy as np
import pytest
from pydantic import ValidationError

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.search.analysis import analyse
from deepsearch_rl.search.bm25.building import RunWriter, merge_runs
from deepsearch_rl.search.bm25.builtin import (
    MAX_LANES,
    MIN_COLUMNS,
    SCORES_AT_ONCE,
    Bm25Config,
    Bm25Index,
    top_rows,
)
from deepsearch_rl.search.ranking import Ranking, rank
from tests.chunks import make_chunk, make_chunks

CONFIG = Bm25Config(engine="builtin", k1=0.9, b=0.4, fields={"contents": 1.0})
TEXTS = ["lander comet comet", "river country", "comet probe orbit river"]


@pytest.fixture
def index(tmp_path: Path) -> Bm25Index:
    return Bm25Index.build(make_chunks(TEXTS), tmp_path / "bm25", CONFIG)


def random_texts(rng: np.random.Generator, rows: int) -> list[str]:
    """Texts of 1 to 60 words drawn as natural language draws them, some of them empty of terms."""
    words = np.array([f"word{number}" for number in range(400)] + ["the", "Zürich", "東京"])
    chances = 1 / np.arange(1, len(words) + 1)
    return [
        " ".join(rng.choice(words, rng.integers(1, 60), p=chances / chances.sum()))
        for _ in range(rows)
    ]


def oracle(
    texts: list[str], queries: list[str], config: Bm25Config, top_k: int
) -> Iterator[Ranking]:
    """The rankings of bm25s."""
    vocabulary = {}
    ids = [
        [vocabulary.setdefault(term, len(vocabulary)) for term in analyse(text)] for text in texts
    ]
    model = bm25s.BM25(k1=config.k1, b=config.b, method="lucene")
    model.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    for query in queries:
        scores_N = model.get_scores_from_ids(model.get_tokens_ids(analyse(query)))
        rows_M = np.flatnonzero(scores_N > 0)
        yield rank(rows_M, scores_N[rows_M], top_k)


def assert_equal_rankings(ours: Iterable[Ranking], theirs: Iterable[Ranking]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        assert our.rows_K.tolist() == their.rows_K.tolist()
        np.testing.assert_allclose(our.scores_K, their.scores_K, rtol=1e-6)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("seed", "k1", "b"), [(0, 0.9, 0.4), (1, 1.5, 0.75), (2, 0.1, 0.0), (3, 2.0, 1.0)]
)
def test_with_one_field_it_ranks_and_scores_as_bm25s(
    tmp_path: Path, seed: int, k1: float, b: float
) -> None:
    rng = np.random.default_rng(seed)
    texts, queries = random_texts(rng, 200), random_texts(rng, 20)
    config = CONFIG.model_copy(update={"k1": k1, "b": b})
    found = Bm25Index.build(make_chunks(texts), tmp_path, config).search(queries, 50)
    assert_equal_rankings(found, oracle(texts, queries, config, 50))


@pytest.mark.slow
@pytest.mark.realdata
def test_on_real_passages_it_ranks_and_scores_as_bm25s(tmp_path: Path, real_data: Path) -> None:
    with gzip.open(real_data / "wiki18/sample1000.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["contents"] for line in lines]
    queries = [text[40:140] for text in texts[::5]]
    found = Bm25Index.build(make_chunks(texts), tmp_path, CONFIG).search(queries, 20)
    assert_equal_rankings(found, oracle(texts, queries, CONFIG, 20))


def lucene_bm25(
    term_count: int, length: int, mean_length: float, documents: int, containing: int
) -> float:
    """Lucene's BM25 of one term (Kamphuis et al. 2020, table 1)."""
    idf = math.log(1 + (documents - containing + 0.5) / (containing + 0.5))
    return idf * term_count / (term_count + 0.9 * (1 - 0.4 + 0.4 * length / mean_length))


def test_scores_are_those_of_lucenes_formula(index: Bm25Index) -> None:
    [ranking] = index.search(["comet"], 10)
    assert ranking.rows_K.tolist() == [0, 2]
    assert ranking.scores_K.tolist() == pytest.approx(
        [lucene_bm25(2, 3, 3, 3, 2), lucene_bm25(1, 4, 3, 3, 2)]
    )


def test_fields_are_weighted_before_they_saturate(tmp_path: Path) -> None:
    chunks = [
        make_chunk("Comet\nA comet and a probe.", source="Nature", published_at="2023-10-30"),
        make_chunk("River\nThe comet.", published_at="2023-10-30"),
        make_chunk("Port\nShip ship."),
    ]
    config = Bm25Config(
        engine="builtin",
        k1=0.9,
        b=0.4,
        fields={"title": 2.0, "body": 1.0, "source": 3.0, "date": 1.0},
    )
    index = Bm25Index.build(chunks, tmp_path, config)
    # Title: one term each, mean 1. Body: 2 (comet, probe), 1 (comet) and 2 (ship, ship), mean 5/3.
    of_title_and_body = 2.0 * 1 / 1.0 + 1.0 * 1 / (0.6 + 0.4 * 2 / (5 / 3))
    of_body = 1.0 * 1 / (0.6 + 0.4 * 1 / (5 / 3))
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    [comet, nature, date] = index.search(["comet", "nature", "On October 30, 2023"], 10)
    assert comet.rows_K.tolist() == [0, 1]
    assert comet.scores_K.tolist() == pytest.approx(
        [idf * tf / (0.9 + tf) for tf in (of_title_and_body, of_body)]
    )
    assert (nature.rows_K.tolist(), date.rows_K.tolist()) == ([0], [0, 1])
    of_source = 3.0 * 1 / (0.6 + 0.4 * 1 / (1 / 3))
    assert nature.scores_K.tolist() == pytest.approx(
        [math.log(1 + 2.5 / 1.5) * of_source / (0.9 + of_source)]
    )


def test_a_field_that_no_chunk_has_changes_nothing(tmp_path: Path) -> None:
    fields = {"contents": 1.0, "source": 5.0}
    with_source = Bm25Index.build(
        make_chunks(TEXTS), tmp_path / "with", CONFIG.model_copy(update={"fields": fields})
    )
    without = Bm25Index.build(make_chunks(TEXTS), tmp_path / "without", CONFIG)
    assert with_source.scores_P.tolist() == without.scores_P.tolist()


@pytest.mark.parametrize("fields", [{}, {"contents": 0.0}, {"author": 1.0}])
def test_fields_that_cannot_work_are_refused(fields: object) -> None:
    with pytest.raises(ValidationError):
        Bm25Config(engine="builtin", k1=0.9, b=0.4, fields=fields)


def test_queries_are_analysed_as_documents_are(index: Bm25Index) -> None:
    inflected, plain = index.search(["The LANDERS, and countries!", "lander country"], 10)
    assert inflected.rows_K.tolist() == plain.rows_K.tolist()
    assert set(plain.rows_K.tolist()) == {0, 1}


def test_a_repeated_term_counts_as_often(index: Bm25Index) -> None:
    [once, twice] = index.search(["comet", "comet comet"], 10)
    assert twice.rows_K.tolist() == once.rows_K.tolist()
    assert twice.scores_K.tolist() == (2 * once.scores_K).tolist()


def test_words_of_any_script_are_found(tmp_path: Path) -> None:
    texts = ["東京 タワー", "Füße und Straße", "emoji 😀 \x00 nul", "\ud800 lone"]
    index = Bm25Index.build(make_chunks(texts[:3]), tmp_path, CONFIG)
    found = index.search(["東京", "FÜSSE füße", "nul", texts[3]], 5)
    assert [ranking.rows_K.tolist() for ranking in found] == [[0], [1], [2], []]


@pytest.mark.slow
@pytest.mark.parametrize("tokens_per_run", [1, 7, 100])
def test_many_runs_give_the_bytes_of_one(tmp_path: Path, tokens_per_run: int) -> None:
    fields = {"contents": 1.0, "title": 0.5, "source": 2.0}
    config = CONFIG.model_copy(update={"fields": fields})
    texts = random_texts(np.random.default_rng(5), 60)
    chunks = [make_chunk(f"{text[:9]}\n{text}", source=text[:5]) for text in texts]
    Bm25Index.build(chunks, tmp_path / "one", config)
    Bm25Index.build(chunks, tmp_path / "many", config, tokens_per_run)
    assert digests(tmp_path / "many") == digests(tmp_path / "one")


def test_merging_in_parts_gives_the_same_bytes(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, 1, tokens_per_run=200)
    for text in random_texts(np.random.default_rng(6), 60):
        writer.add([text])
    runs = writer.finish()
    assert len(runs) > 3
    for name, postings_at_once in (("whole", 10**9), ("parts", 40)):
        (tmp_path / name).mkdir()
        merge_runs(runs, [1.0], CONFIG.k1, CONFIG.b, tmp_path / name, postings_at_once)
    assert digests(tmp_path / "parts") == digests(tmp_path / "whole")


def test_an_opened_index_is_mapped_and_ranks_as_the_built_one(
    index: Bm25Index, tmp_path: Path
) -> None:
    opened = Bm25Index.open(tmp_path / "bm25", CONFIG)
    [before], [after] = (which.search(["comet river"], 3) for which in (index, opened))
    assert (after.rows_K.tolist(), after.scores_K.tolist()) == (
        before.rows_K.tolist(),
        before.scores_K.tolist(),
    )
    for array in (opened.keys_V, opened.offsets, opened.rows_P, opened.scores_P):
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable


def test_only_the_index_is_left_in_the_folder(index: Bm25Index, tmp_path: Path) -> None:
    names = {path.name for path in (tmp_path / "bm25").iterdir()}
    assert names == {"index.json", "keys.npy", "offsets.npy", "rows.npy", "scores.npy"}
    assert index.summary.rows == 3


@pytest.mark.slow
def test_threads_do_not_meet(tmp_path: Path) -> None:
    texts = random_texts(np.random.default_rng(8), 300)
    index = Bm25Index.build(make_chunks(texts), tmp_path, CONFIG)
    expected = [index.search([text], 10)[0].rows_K.tolist() for text in texts]
    found: dict[int, list[list[int]]] = {}

    def ask(thread: int) -> None:
        found[thread] = [index.search([text], 10)[0].rows_K.tolist() for text in texts]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), expected)


@pytest.mark.parametrize("texts", [[], ["the of", "and ..."]])
def test_a_corpus_without_terms_is_refused(tmp_path: Path, texts: object) -> None:
    with pytest.raises(ConfigError):
        Bm25Index.build(make_chunks(texts), tmp_path, CONFIG)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "scores.npy").symlink_to("/dev/full")
    with pytest.raises(ArtifactError, match="the disk is full"):
        Bm25Index.build(make_chunks(TEXTS), tmp_path, CONFIG)


@pytest.mark.parametrize(
    "name", ["index.json", "keys.npy", "offsets.npy", "rows.npy", "scores.npy"]
)
def test_a_damaged_index_is_refused(tmp_path: Path, name: str) -> None:
    Bm25Index.build(make_chunks(TEXTS), tmp_path / "bm25", CONFIG)
    path = tmp_path / "bm25" / name
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(ArtifactError, match=name):
        Bm25Index.open(tmp_path / "bm25", CONFIG)
    path.unlink()
    with pytest.raises(ArtifactError, match=name):
        Bm25Index.open(tmp_path / "bm25", CONFIG)


def test_arrays_of_two_indexes_are_refused(index: Bm25Index, tmp_path: Path) -> None:
    Bm25Index.build(make_chunks(TEXTS[:2]), tmp_path / "other", CONFIG)
    (tmp_path / "other" / "scores.npy").replace(tmp_path / "bm25" / "scores.npy")
    assert index.summary.rows == 3
    with pytest.raises(ArtifactError, match="do not fit"):
        Bm25Index.open(tmp_path / "bm25", CONFIG)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("sixty_fours", [0, 1, 2, 5, 40, 1537])
@pytest.mark.parametrize("top_k", [1, 10, 1000, 1_000_000])
@pytest.mark.parametrize("distinct", [2, 50, 1_000_000])
def test_the_best_rows_are_those_of_a_sort(
    queries: int, sixty_fours: int, top_k: int, distinct: int
) -> None:
    rows = sixty_fours * MAX_LANES
    rng = np.random.default_rng([rows, top_k, distinct])
    drawn_QN = rng.integers(-distinct, distinct, (queries, rows))
    scores_QN = np.maximum(drawn_QN, 0).astype(np.float32)
    rankings = top_rows(scores_QN, top_k)
    assert len(rankings) == queries

    for scores_N, ranking in zip(scores_QN, rankings, strict=True):
        positive = np.flatnonzero(scores_N)
        expected = positive[np.lexsort((positive, -scores_N[positive]))][:top_k]
        assert ranking.rows_K.tolist() == expected.tolist()
        assert ranking.scores_K.tolist() == scores_N[expected].tolist()


def test_a_single_positive_row_is_found_among_many() -> None:
    scores_QN = np.zeros((2, 4 * MAX_LANES * MIN_COLUMNS), dtype=np.float32)
    scores_QN[1, -1] = 0.5
    none, single = top_rows(scores_QN, 10)
    assert none.rows_K.tolist() == []
    assert single.rows_K.tolist() == [scores_QN.shape[1] - 1]


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_a_query_has_the_same_ranking_in_every_batch(tmp_path: Path, masked: bool) -> None:
    rng = np.random.default_rng(9)
    rows = 3000
    index = Bm25Index.build(make_chunks(random_texts(rng, rows)), tmp_path, CONFIG)
    queries = [*random_texts(rng, 2 * SCORES_AT_ONCE // rows), "", "unheard", "word1 word1 word1"]
    allowed_N = rng.random(rows) < 0.1 if masked else None

    for query, together in zip(queries, index.search(queries, 20, allowed_N), strict=True):
        [alone] = index.search([query], 20, allowed_N)
        assert together.rows_K.tolist() == alone.rows_K.tolist()
        assert together.scores_K.tolist() == alone.scores_K.tolist()
