"""``deepsearch retrieve build`` and ``search``, as a user calls them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.search.manifest import read_manifest
from tests.conftest import ROOT
from tests.search.encoders.folders import write_bert

PASSAGES = [
    {"id": "0", "contents": '"Philae"\nThe lander Philae touched down on a comet in 2014.'},
    {
        "id": "1",
        "title": "Danube",
        "text": "A river of ten countries.",
        "source": "Atlas",
        "published_at": "2020-05-01",
    },
    {
        "id": "2",
        "title": "Comet",
        "text": "A comet is a small icy body.",
        "metadata": {"source": "Atlas"},
    },
]


def retrieve(*arguments: object) -> str:
    """What a command prints; what it raises goes through."""
    result = CliRunner().invoke(app, ["retrieve", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(passage) + "\n" for passage in PASSAGES))
    return path


@pytest.fixture(scope="module")
def index(corpus: Path) -> Path:
    assert "3 passages, 3-d vectors" in retrieve(
        "build", "--corpus", corpus, "--out", corpus.parent / "index"
    )
    return corpus.parent / "index"


@pytest.mark.parametrize("retriever", ["bm25", "dense", "hybrid"])
def test_passages_are_printed_numbered_with_scores_and_as_json(index: Path, retriever: str) -> None:
    text = retrieve("search", "--index", index, "--retriever", retriever, "lander on a comet")
    assert re.match(r'\[1\] \d+\.\d{4}  "Philae"\nThe lander', text)
    first, *_ = json.loads(
        retrieve("search", "--index", index, "--retriever", retriever, "--json", "lander")
    )
    assert first["id"] == "0"
    assert (first["contents"], first["metadata"]["doc_id"]) == (PASSAGES[0]["contents"], "0")


def test_filters_leave_out_what_is_of_another_source_or_day_or_of_none(index: Path) -> None:
    found = [
        passage["id"]
        for passage in json.loads(retrieve("search", "--index", index, "--json", "comet"))
    ]
    assert sorted(found) == ["0", "2"]
    assert '"id": "2"' in retrieve(
        "search", "--index", index, "--source", "Atlas", "--json", "comet"
    )
    dated = ("--after", "2020-05-01", "--before", "2020-05-01")
    assert "[1]" in retrieve("search", "--index", index, *dated, "river")
    assert retrieve("search", "--index", index, *dated, "comet") == "No passages found.\n"
    with pytest.raises(ConfigError, match="is later than"):
        retrieve(
            "search", "--index", index, "--after", "2021-01-01", "--before", "2020-01-01", "comet"
        )


def test_an_encoder_folder_and_a_kind_of_vectors_can_be_chosen(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bert(tmp_path / "encoder")
    monkeypatch.chdir(tmp_path)
    options = ("--encoder", "encoder", "--pooling", "mean", "--half", "--vectors", "hnsw")
    retrieve("build", "--corpus", corpus, "--out", tmp_path / "index", *options)
    config = read_manifest(tmp_path / "index").config
    assert (config.encoder.name, config.encoding.dtype, config.vectors.kind) == (
        "transformers",
        "float16",
        "hnsw",
    )
    monkeypatch.chdir(corpus.parent)  # the folder is found from anywhere
    assert "[1]" in retrieve(
        "search", "--index", tmp_path / "index", "--retriever", "dense", "comet"
    )


def test_settings_can_come_from_a_params_file(corpus: Path, tmp_path: Path) -> None:
    retrieve(
        "build", "--corpus", corpus, "--out", tmp_path / "index", "--params", ROOT / "params.yaml"
    )
    assert read_manifest(tmp_path / "index").config.encoder.name == "tfidf_svd"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--field", "title"), r"--field 'title' should be NAME=WEIGHT"),
        (
            ("--field", "title", "--params", str(ROOT / "params.yaml")),
            r"--field 'title' should be NAME=WEIGHT",
        ),
        (("--pooling", "max", "--encoder", "models/e5"), r"encoder\.transformers\.pooling"),
        (("--params", "absent.yaml"), r"absent\.yaml does not exist"),
        (("--vectors", "ivf_pq"), "too few for nlist"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    corpus: Path, tmp_path: Path, options: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        retrieve("build", "--corpus", corpus, "--out", tmp_path / "index", *options)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("build --corpus c --out o --nprobe 48", "--nprobe does nothing with --vectors flat"),
        ("build --corpus c --out o --m 8 --vectors ivf_flat", "--m does nothing with --vectors"),
        ("build --corpus c --out o --query-prefix q", "--query-prefix does nothing with tfidf_svd"),
        ("build --corpus c --out o --encoder e --dimension 8", "--dimension does nothing with an"),
        ("build --corpus c --out o --params params.yaml --k1 1.2", "--k1 does nothing beside"),
        ("build --corpus c --out o --threads 2", "--threads does nothing with tfidf_svd"),
        ("build --corpus c --out o --corpus-name w", "--corpus-name does nothing without --params"),
        ("build --corpus c --out o --only bm25 --encoder e", "--encoder does nothing with --only"),
        ("build --corpus c --out o --only bm25 --engine onnx", "--engine does nothing with --only"),
        (
            "build --corpus c --out o --only bm25 --dtype float16",
            "--dtype does nothing with --only",
        ),
        ("build --corpus c --out o --only bm25 --dimension 8", "--dimension does nothing with --o"),
        (
            "build --corpus c --out o --only bm25 --pooling cls",
            "--pooling does nothing with --only",
        ),
        (
            "build --corpus c --out o --only bm25 --vectors hnsw",
            "--vectors does nothing with --onl",
        ),
        (
            "build --corpus c --out o --only bm25 --nprobe 3",
            "--nprobe does nothing with --only bm25",
        ),
        ("build --corpus c --out o --only bm25 --half", "--half does nothing with --only bm25"),
        ("build --corpus c --out o --only bm25 --work w", "--work does nothing with --only bm25"),
        (
            "build --corpus c --out o --only bm25 --threads 2",
            "--threads does nothing with --only b",
        ),
        ("build --corpus c --out o --only dense --k1 1.2", "--k1 does nothing with --only dense"),
        (
            "build --corpus c --out o --only dense --field title=2",
            "--field does nothing with --only",
        ),
        (
            "build --corpus c --out o --only bm25 --questions q",
            "--questions does nothing for bm25 a",
        ),
        (
            "build --corpus c --out o --only dense --questions q",
            "--questions does nothing for dense",
        ),
        (
            "eval --index i --questions q --stored-weights --folds 7",
            "--folds does nothing with --s",
        ),
        (
            "eval --index i --questions q --stored-weights --ridge 1",
            "--ridge does nothing with --s",
        ),
        ("eval --index i --questions q --retriever bm25 --folds 2", "--folds does nothing without"),
        (
            "frontier --out o --vectors v --queries q --sample-queries 5",
            "--sample-queries does not",
        ),
        (
            "frontier --out o --vectors v --kinds flat,hnsw --nlist 5",
            "--nlist does nothing without",
        ),
        ("search --index i words --rerank-depth 9", "--rerank-depth does nothing without a cross"),
        ("serve --index i --rerank-tokens 64", "--rerank-tokens does nothing without a cross"),
        ("serve --online brave --retriever dense", "--retriever does nothing with --online"),
        ("import lucene --corpus c --out o --encoder e", "--encoder does nothing with a Lucene"),
        ("import lucene --corpus c --out o --pooling cls", "--pooling does nothing with a Lucene"),
        ("import lucene --corpus c --out o --nprobe 3", "--nprobe does nothing with a Lucene"),
        ("import v.npy --corpus c --out o --encoder e --k1 1", "--k1 does nothing with vectors"),
        ("import e5.index --corpus c --out o --heap-mb 99", "--heap-mb does nothing with vectors"),
        ("import v.npy --corpus c --out o --ef-search 9", "--ef-search does nothing with a .npy"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    segments = tmp_path / "lucene" / "segments_1"
    segments.parent.mkdir()
    segments.touch()
    with pytest.raises(ConfigError, match=option):
        retrieve(*command.split())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoder": None}, "for bm25 alone: the hybrid"),
        ({"fusion": {"learning": None}}, "where index.fusion.learning of --params is null"),
    ],
)
def test_questions_of_an_index_that_learns_nothing_are_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    fusion = params["index"]["fusion"] | changes.get("fusion", {})
    params["index"] |= changes | {"fusion": fusion}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    given = ("--params", tmp_path / "params.yaml", "--questions", "q.jsonl")
    with pytest.raises(ConfigError, match=f"--questions does nothing {reason}"):
        retrieve("build", "--corpus", "c.jsonl", "--out", tmp_path / "index", *given)


def test_folds_of_an_index_of_one_half_are_refused(corpus: Path, tmp_path: Path) -> None:
    retrieve("build", "--corpus", corpus, "--out", tmp_path / "index", "--only", "bm25")
    with pytest.raises(ConfigError, match="--folds does nothing for an index of one half"):
        retrieve("eval", "--index", tmp_path / "index", "--questions", "q.jsonl", "--folds", 2)


def test_too_few_questions_to_learn_from_are_said(corpus: Path, tmp_path: Path) -> None:
    question = {"id": "q", "question": "Which lander?", "golden_answers": ["Philae"]}
    (tmp_path / "q.jsonl").write_text(json.dumps(question | {"supporting_doc_ids": ["0"]}))
    built = retrieve(
        "build",
        "--corpus",
        corpus,
        "--out",
        tmp_path / "index",
        "--questions",
        tmp_path / "q.jsonl",
    )
    assert "learnt nothing: there are too few questions with gold evidence" in built


@pytest.mark.parametrize("command", ["build", "eval", "frontier"])
@pytest.mark.parametrize("seed", ["-1", str(2**31)])
def test_a_seed_that_no_library_takes_is_refused_at_once(command: str, seed: str) -> None:
    result = CliRunner().invoke(app, ["retrieve", command, "--seed", seed])
    assert result.exit_code == 2
    assert "Invalid value for '--seed'" in result.output


def test_help_shows_a_session_that_works(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    shown = re.findall(
        r"^ +deepsearch retrieve ((?:build|search) .*?)(?: \|.*)? *$",
        retrieve("--help"),
        re.MULTILINE,
    )
    assert len(shown) >= 4
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.jsonl").write_bytes(corpus.read_bytes())
    for line in shown:
        retrieve(*(part.strip('"') for part in re.findall(r'"[^"]*"|\S+', line)))
