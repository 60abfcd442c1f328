"""Prebuilt indexes, made by FAISS and Lucene themselves, as indexes of ours."""

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.search.bm25.lucene import ANALYSER, start_jvm
from deepsearch_rl.search.build import IndexSection, build_index, build_indexes
from deepsearch_rl.search.faiss_index import TIE_SLACK
from deepsearch_rl.search.importing import imported_config
from deepsearch_rl.search.manifest import IndexConfig, read_manifest
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import open_index
from tests.search.bm25.test_lucene import needs_pyserini
from tests.search.encoders.folders import write_bert
from tests.settings import INDEX

SIZE = 64
WORDS = ("comet", "lander", "river", "probe", "city")
KINDS = {
    "flat": "Flat",
    "hnsw": "HNSW8,Flat",
    "ivf": "IVF4,Flat",
    "ivf_pq": "IVF4,PQ8x4np",
    "rotated": "RR16,IVF4,PQ8x4np",
    "sq8": "SQ8",
}


def text_of(row: int) -> str:
    """Return a passage's words, which differ from those of every other row."""
    digits = [WORDS[row // 5**place % 5] for place in range(3)]
    return " ".join([*digits, "the"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("import")
    write_bert(folder / "encoder")
    with (folder / "corpus.jsonl").open("w") as lines:
        for row in range(SIZE):
            source = {"source": "even" if row % 2 == 0 else "odd"}
            passage = {"id": f"p{row}", "contents": f"a\n{text_of(row)}", "metadata": source}
            lines.write(json.dumps(passage) + "\n")
    return folder


@pytest.fixture(scope="module")
def config(folder: Path) -> IndexConfig:
    encoder = {
        "name": "sentence_transformers",
        "model": str(folder / "encoder"),
        "revision": None,
        "device": "cpu",
        "dtype": "float32",
        "query_prefix": None,
        "passage_prefix": None,
        "pooling": "mean",
        "max_tokens": None,
        "batch_tokens": 512,
        "threads": 1,
    }
    return IndexConfig.model_validate(INDEX.model_dump() | {"encoder": encoder})


@pytest.fixture(scope="module")
def vectors_ND(folder: Path, config: IndexConfig) -> Any:
    assert config.encoder is not None
    encoder = config.encoder.open(folder)
    return encoder.encode([f"a\n{text_of(row)}" for row in range(SIZE)], "passage")


def written(
    vectors_ND: Any, path: Path, factory: str, metric: int = faiss.METRIC_INNER_PRODUCT
) -> Path:
    index: Any = faiss.index_factory(vectors_ND.shape[1], factory, metric)
    index.train(vectors_ND)
    index.add(vectors_ND)
    faiss.write_index(index, str(path))
    return path


def imported(source: Path, folder: Path, config: IndexConfig, out: Path) -> Path:
    described = imported_config(source, config)
    build_index(folder / "corpus.jsonl", out, described, 0, imported=source)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_a_faiss_index_is_searched_unchanged_and_finds_what_faiss_finds(
    folder: Path, config: IndexConfig, vectors_ND: Any, tmp_path: Path, kind: str
) -> None:
    source = written(vectors_ND, tmp_path / "e5.index", KINDS[kind])
    before = sha256_file(source)
    out = imported(source, folder, config, tmp_path / "out")
    assert sha256_file(source) == sha256_file(out / "dense/index.faiss") == before

    queries = [text_of(row) for row in (3, 30, 61)]
    assert config.encoder is not None
    queries_QD = config.encoder.open(folder).encode(queries, "query")
    scores_QK, rows_QK = faiss.read_index(str(source)).search(queries_QD, 5)  # pyright: ignore[reportCallIssue]
    hits_Q = open_index(out).find_hits(queries, 5)

    for hits, scores_K, rows_K in zip(hits_Q, scores_QK, rows_QK, strict=True):
        assert [hit.score for hit in hits] == pytest.approx(
            scores_K[rows_K >= 0].tolist(), abs=1e-5
        )
        assert [hit.chunk.id for hit in hits] == [f"p{hit.row}" for hit in hits]
    assert read_manifest(out).dimension == vectors_ND.shape[1]


def test_a_filter_costs_an_imported_index_no_hits(
    folder: Path, config: IndexConfig, vectors_ND: Any, tmp_path: Path
) -> None:
    source = written(vectors_ND, tmp_path / "e5.index", KINDS["ivf"])
    searcher = open_index(imported(source, folder, config, tmp_path / "out"))
    [hits] = searcher.find_hits([text_of(3)], 5, Filter(source="odd"))
    assert len(hits) == 5
    assert all(hit.row % 2 == 1 for hit in hits)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_vectors_in_npy_are_searched_exactly(
    folder: Path, config: IndexConfig, vectors_ND: Any, tmp_path: Path, dtype: Any
) -> None:
    source = tmp_path / "vectors.npy"
    np.save(source, vectors_ND.astype(dtype))
    queries = [text_of(row) for row in (3, 30, 61)]
    assert config.encoder is not None
    queries_QD = config.encoder.open(folder).encode(queries, "query")
    scores_QN = queries_QD @ vectors_ND.T

    hits_Q = open_index(imported(source, folder, config, tmp_path / "out")).find_hits(queries, 3)
    for hits, scores_N in zip(hits_Q, scores_QN, strict=True):
        best = np.sort(scores_N)[::-1][:3]
        assert [hit.score for hit in hits] == pytest.approx(best.tolist(), abs=1e-3)


def test_the_file_behind_a_link_is_imported_as_a_hubs_cache_has_them(
    folder: Path, config: IndexConfig, vectors_ND: Any, tmp_path: Path
) -> None:
    blob = tmp_path / "hub" / "blobs" / "4f2a"
    link = tmp_path / "hub" / "snapshots" / "vectors.npy"
    blob.parent.mkdir(parents=True)
    link.parent.mkdir()
    with blob.open("wb") as file:
        np.save(file, vectors_ND)
    link.symlink_to("../blobs/4f2a")
    index = imported(link, folder, config, tmp_path / "index")
    [hits] = open_index(index).find_hits([f"a\n{text_of(7)}"], 1)
    assert [hit.chunk.id for hit in hits] == ["p7"]
    assert not (index / "dense" / "vectors.npy").is_symlink()


@pytest.mark.parametrize("factory", ["IVF4,PQ8x4np,RFlat", "RR16,IVF4,PQ8x4np,RFlat"])
def test_codes_whose_hits_whole_vectors_score_are_searched_as_faiss_does(
    folder: Path, config: IndexConfig, vectors_ND: Any, tmp_path: Path, factory: str
) -> None:
    source = written(vectors_ND, tmp_path / "refined.index", factory)
    searcher = open_index(imported(source, folder, config, tmp_path / "out"))
    queries = [text_of(row) for row in (3, 30, 61)]
    assert config.encoder is not None
    queries_QD = config.encoder.open(folder).encode(queries, "query")
    # As many as are asked for: these are scored anew
    scores_QK, _ = faiss.read_index(str(source)).search(queries_QD, 5 + TIE_SLACK)  # pyright: ignore[reportCallIssue]
    for hits, scores_K in zip(searcher.find_hits(queries, 5), scores_QK, strict=True):
        expected = sorted(scores_K.tolist(), reverse=True)[:5]
        assert [hit.score for hit in hits] == pytest.approx(expected, abs=1e-5)

    [hits] = searcher.find_hits([text_of(3)], 5, Filter(source="odd"))
    assert len(hits) == 5
    assert all(hit.row % 2 == 1 for hit in hits)


def test_what_does_not_belong_together_is_refused(
    folder: Path, config: IndexConfig, vectors_ND: Any, tmp_path: Path
) -> None:
    def refused(vectors: Any, words: str, factory: str = "Flat", **rest: Any) -> None:
        source = written(np.ascontiguousarray(vectors), tmp_path / "bad.index", factory, **rest)
        with pytest.raises(ArtifactError, match=words):
            imported(source, folder, config, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    refused(vectors_ND[1:], "holds 63 vectors and the corpus 64 passages")
    refused(vectors_ND[:, :8], "vectors of 8 dimensions, and the encoder gives 16")
    refused(vectors_ND[:, :8], "vectors of 8 dimensions, and the encoder gives 16", "IVF4,PQ4x4np")
    refused(vectors_ND[::-1], r"row 0 of .* the corpus is in another order")
    refused(vectors_ND, "another metric than the inner product", metric=faiss.METRIC_L2)

    with_ids: Any = faiss.IndexIDMap(faiss.IndexFlatIP(vectors_ND.shape[1]))
    with_ids.add_with_ids(vectors_ND, np.arange(SIZE)[::-1].copy())
    faiss.write_index(with_ids, str(tmp_path / "ids.index"))
    with pytest.raises(ArtifactError, match="IndexIDMap"):
        imported(tmp_path / "ids.index", folder, config, tmp_path / "out")


def test_a_source_that_is_none_is_named(folder: Path, config: IndexConfig, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        imported(tmp_path / "none", folder, config, tmp_path / "out")
    with pytest.raises(ArtifactError, match="folder without Lucene's segments"):
        imported(tmp_path, folder, config, tmp_path / "out")
    (tmp_path / "text.index").write_text("no index")
    with pytest.raises(ArtifactError, match="cannot be read"):
        imported(tmp_path / "text.index", folder, config, tmp_path / "out")
    without = config.model_copy(update={"encoder": None})
    with pytest.raises(ConfigError, match="the encoder that they are of"):
        imported(tmp_path / "text.index", folder, without, tmp_path / "out")


def test_vectors_of_an_encoder_that_only_a_build_makes_are_refused(
    folder: Path, config: IndexConfig, vectors_ND: Any, tmp_path: Path
) -> None:
    np.save(tmp_path / "vectors.npy", vectors_ND)
    source = ("import", tmp_path / "vectors.npy", "--corpus", folder / "corpus.jsonl")
    call = ["retrieve", *source, "--out", tmp_path / "out", "--encoder", "tfidf_svd"]
    message = r"of another encoder than tfidf_svd, which `retrieve build` learns"
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, list(map(str, call)), catch_exceptions=False)
    learnt = config.model_copy(update={"encoder": INDEX.encoder})
    with pytest.raises(ConfigError, match=message):
        imported(tmp_path / "vectors.npy", folder, learnt, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_graph_imports_the_index_of_a_corpus_that_params_name(
    folder: Path, config: IndexConfig, vectors_ND: Any, tmp_path: Path
) -> None:
    source = written(vectors_ND, tmp_path / "e5.index", KINDS["hnsw"])
    chunks = tmp_path / "chunks"
    chunks.mkdir()
    (chunks / "wiki.jsonl").write_bytes((folder / "corpus.jsonl").read_bytes())
    values = config.model_dump() | {"corpus_vectors": {}, "imported": {"wiki": str(source)}}
    quality = {"split": "val", "cutoffs": [1]}
    section = IndexSection.model_validate(values | {"quality": quality, "threads": 1})
    build_indexes(chunks, tmp_path / "index", section, 0, tmp_path / "work", {})
    built = read_manifest(tmp_path / "index/wiki").config
    assert (built.vectors.kind, built.bm25) == ("faiss", None)


def test_the_command_imports_and_the_effort_is_kept(
    folder: Path, vectors_ND: Any, tmp_path: Path
) -> None:
    source = written(vectors_ND, tmp_path / "e5.index", KINDS["ivf_pq"])
    arguments = ["retrieve", "import", str(source), "--corpus", str(folder / "corpus.jsonl")]
    arguments += ["--out", str(tmp_path / "out"), "--encoder", str(folder / "encoder")]
    arguments += ["--search", "nprobe=3", "-S", "index.encoder.pooling=mean"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "64 passages, 16-d vectors" in result.output
    vectors = read_manifest(tmp_path / "out").config.vectors
    assert (vectors.factory, vectors.search) == (None, "nprobe=3")


def write_lucene(folder: Path, documents: list[tuple[str, str]]) -> None:
    """Write an index as Anserini's: a stored id and the analysed contents."""
    java = start_jvm(256)
    paths = java("java.nio.file.Paths")
    directory = java("org.apache.lucene.store.FSDirectory").open(paths.get(str(folder)))
    analyser = java(ANALYSER).newDefaultInstance()
    writer = java("org.apache.lucene.index.IndexWriter")(
        directory, java("org.apache.lucene.index.IndexWriterConfig")(analyser)
    )
    store = java("org.apache.lucene.document.Field$Store")
    for id_, contents in documents:
        document = java("org.apache.lucene.document.Document")()
        document.add(java("org.apache.lucene.document.StringField")("id", id_, store.YES))
        document.add(java("org.apache.lucene.document.TextField")("contents", contents, store.NO))
        writer.addDocument(document)
    writer.close()


@pytest.mark.slow
@needs_pyserini
def test_a_lucene_index_is_matched_with_its_corpus_by_id(folder: Path, tmp_path: Path) -> None:
    documents = [(f"p{row}", f"a\n{text_of(row)} word{row}") for row in range(SIZE)]
    write_lucene(tmp_path / "lucene", documents[::-1])
    import_lucene_index(tmp_path / "lucene", folder, tmp_path / "out")
    [hits] = open_index(tmp_path / "out").find_hits(["word7 word40"], 3)
    assert sorted(hit.chunk.id for hit in hits) == ["p40", "p7"]
    [tied] = open_index(tmp_path / "out").find_hits(["word9 word8"], 3)
    assert [hit.row for hit in tied] == [8, 9]


def import_lucene_index(source: Path, folder: Path, out: Path) -> None:
    command = ["retrieve", "import", str(source), "--corpus", str(folder / "corpus.jsonl")]
    command += ["-S", "index.bm25.heap_mb=256", "--out", str(out)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.slow
@needs_pyserini
@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([("x", "word")] + [(f"p{row}", "word") for row in range(1, SIZE)], "has the id 'x'"),
        ([("p1", "word") for _ in range(SIZE)], "several documents of one id"),
        ([("p1", "word")], r"1 documents .* and the corpus 64 passages"),
        ([(f"p{row}", "the") for row in range(SIZE)], "no text in the field contents"),
    ],
)
def test_a_lucene_index_of_another_corpus_is_refused(
    folder: Path, tmp_path: Path, documents: list[tuple[str, str]], words: str
) -> None:
    write_lucene(tmp_path / "lucene", documents)
    with pytest.raises(ArtifactError, match=words):
        import_lucene_index(tmp_path / "lucene", folder, tmp_path / "out")


@pytest.mark.parametrize("factory", [None, "Flat", "HNSW8,Flat", "SQfp16"])
def test_a_vector_that_is_not_finite_is_refused_with_its_row(
    folder: Path, config: IndexConfig, vectors_ND: Any, tmp_path: Path, factory: str | None
) -> None:
    odd_ND = vectors_ND.copy()
    odd_ND[7, 3] = np.nan if factory != "Flat" else np.inf
    source = tmp_path / ("e5.npy" if factory is None else "e5.index")
    if factory is None:
        np.save(source, odd_ND)
    else:
        written(odd_ND, source, factory)
    with pytest.raises(ArtifactError, match=rf"row 7 of {source} holds NaN or infinite"):
        imported(source, folder, config, tmp_path / "out")


@pytest.mark.parametrize("factory", ["IVF4,Flat", "RR16,IVF4,PQ8x4np,RFlat"])
def test_vectors_that_faiss_put_into_no_cell_are_refused(
    folder: Path, config: IndexConfig, vectors_ND: Any, tmp_path: Path, factory: str
) -> None:
    index: Any = faiss.index_factory(vectors_ND.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors_ND)
    odd_ND = vectors_ND.copy()
    odd_ND[7, 3] = np.nan
    index.add(odd_ND)
    source = tmp_path / "e5.index"
    faiss.write_index(index, str(source))
    with pytest.raises(ArtifactError, match=f"1 of the {SIZE} vectors of {source} are in no cell"):
        imported(source, folder, config, tmp_path / "out")


@pytest.mark.parametrize("factory", [None, "Flat"])
def test_vectors_that_have_not_length_one_are_counted_and_named(
    folder: Path,
    config: IndexConfig,
    vectors_ND: Any,
    tmp_path: Path,
    factory: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    long_ND = vectors_ND.copy()
    long_ND[[5, 9]] *= 3
    source = tmp_path / ("e5.npy" if factory is None else "e5.index")
    if factory is None:
        np.save(source, long_ND)
    else:
        written(long_ND, source, factory)
    imported(source, folder, config, tmp_path / "out")
    assert f"2 of {SIZE} vectors have not length 1 (3 in row 5, 3 in row 9)" in caplog.text
