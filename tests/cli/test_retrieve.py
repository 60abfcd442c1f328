"""``deepsearch retrieve build`` and ``search``, as a user calls them."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ArtifactError, ConfigError
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
    undated = "2 of 3 passages have no date (metadata.published_at), and are left out\n"
    assert retrieve("search", "--index", index, *dated, "comet") == f"{undated}No passages found.\n"
    with pytest.raises(ConfigError, match="is later than"):
        retrieve(
            "search", "--index", index, "--after", "2021-01-01", "--before", "2020-01-01", "comet"
        )


def test_an_encoder_folder_and_a_kind_of_vectors_can_be_chosen(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bert(tmp_path / "encoder")
    monkeypatch.chdir(tmp_path)
    vectors = "index.vectors={kind: faiss, factory: HNSW8}"
    options = ("--encoder", "encoder", "-S", "index.encoding.dtype=float16", "-S", vectors)
    retrieve("build", "--corpus", corpus, "--out", tmp_path / "index", *options)
    config = read_manifest(tmp_path / "index").config
    assert (config.encoder.name, config.encoding.dtype, config.vectors.kind) == (
        "sentence_transformers",
        "float16",
        "faiss",
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
        (("-S", "index.bm25.fields={headline: 1}"), r"index\.bm25\.builtin\.fields\.headline"),
        (("-S", "index.encoder.pooling=cls"), "index.encoder.pooling"),
        (
            ("-S", "index.encoder.pooling=max", "--encoder", "models/e5"),
            r"encoder\.sentence_transformers\.pooling",
        ),
        (("--params", "absent.yaml"), r"absent\.yaml does not exist"),
        (("--params", "params.yaml", "--encoder", "e"), "--params has an encoder"),
        (("--only", "bm25", "--encoder", "e"), "--only bm25 makes no vectors"),
        (("--only", "bm25", "--questions", "q"), "this index learns none"),
        (
            ("-S", "index.vectors={kind: faiss, factory: 'IVF16,Flat'}"),
            "FAISS cannot build IVF16,Flat of 3 vectors",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(
    corpus: Path, tmp_path: Path, options: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        retrieve("build", "--corpus", corpus, "--out", tmp_path / "index", *options)


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


@pytest.mark.parametrize("seed", ["-1", str(2**31)])
def test_a_seed_that_no_library_takes_is_refused_at_once(seed: str) -> None:
    result = CliRunner().invoke(app, ["retrieve", "build", "--seed", seed])
    assert result.exit_code == 2
    assert "Invalid value for '--seed'" in result.output


def test_help_shows_a_session_that_works(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    shown = re.findall(
        r"^ +deepsearch retrieve ((?:build|search) .*?) *$",
        retrieve("--help"),
        re.MULTILINE,
    )
    assert len(shown) == 2
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.jsonl").write_bytes(corpus.read_bytes())
    for line in shown:
        retrieve(*(part.strip('"') for part in re.findall(r'"[^"]*"|\S+', line)))


def test_retrievers_are_scored_against_gold_evidence(index: Path, tmp_path: Path) -> None:
    question = {"id": "q", "question": "Which lander?", "golden_answers": ["Philae"]}
    gold = {"metadata": {"supporting_titles": ["Philae"]}}
    lines = [json.dumps(question | gold), json.dumps(question | {"id": "r"})]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    asked = ("--index", index, "--questions", tmp_path / "q.jsonl", "--cutoffs", "1")
    scores = json.loads(retrieve("eval", *asked, "--json"))
    assert scores["bm25"] == {
        "n": 1,
        "mrr@10": 1.0,
        "map@10": 1.0,
        "hits@1": 1.0,
        "evidence_recall@1": 1.0,
    }
    assert list(scores) == ["bm25", "dense", "hybrid"]
    printed = retrieve("eval", *asked, "--retriever", "bm25")
    assert "1 of 2 questions have gold evidence" in printed
    (tmp_path / "q.jsonl").write_text(lines[1])
    with pytest.raises(ArtifactError, match="none of 1 questions has gold evidence"):
        retrieve("eval", *asked)


def test_beirs_queries_and_judgements_score_retrievers(index: Path, tmp_path: Path) -> None:
    queries = [{"_id": "q", "text": "Which lander?"}, {"_id": "r", "text": "Which comet?"}]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    (tmp_path / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t0\t1\nr\t0\t0\n")
    files = ("--questions", tmp_path / "queries.jsonl", "--qrels", tmp_path / "test.tsv")
    scores = json.loads(retrieve("eval", "--index", index, *files, "--json"))
    assert (scores["bm25"]["n"], scores["bm25"]["mrr@10"]) == (1, 1.0)
