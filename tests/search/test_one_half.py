"""Indexes of BM25 alone or of vectors alone."""

import json
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from deepsearch_rl.cli.main import main
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Question
from deepsearch_rl.search.build import IndexSection, build_indexes
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.quality import DatasetConfig, measure_datasets
from tests.chunks import make_chunks
from tests.settings import INDEX


@pytest.mark.parametrize(
    ("half", "folder", "missing"), [("bm25", "bm25", "dense"), ("dense", "dense", "bm25")]
)
def test_an_index_of_one_half_is_built_searched_measured_and_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], half: str, folder: str, missing: str
) -> None:
    chunks, index = tmp_path / "chunks.jsonl", tmp_path / "index"
    write_jsonl(
        chunks,
        make_chunks(
            ["Vienna\nVienna is on the Danube.", "Philae\nA lander on a comet.", "River\nLong."]
        ),
    )
    questions = tmp_path / "questions.jsonl"
    question = {"id": "q", "question": "Where did the lander land?", "golden_answers": ["a comet"]}
    gold = {"metadata": {"supporting_titles": ["Philae"]}}
    questions.write_text(
        "".join(json.dumps(question | gold | {"id": name}) + "\n" for name in "qr")
    )

    def command(*arguments: object) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["deepsearch", "retrieve", *map(str, arguments)])
            try:
                main()
            except SystemExit as end:
                if end.code:
                    return str(end.code)
        return capsys.readouterr().out

    options = () if half == "bm25" else ("-S", "index.encoder.dimension=2")
    built = command("build", "--corpus", chunks, "--out", index, "--only", half, *options)
    assert ("no vectors" in built) == (half == "bm25")
    assert {path.name for path in index.iterdir()} == {"manifest.json", "rows", folder}
    assert "Philae" in command(
        "search", "--index", index, "--retriever", half, "--top-k", 1, "lander"
    )
    error = command("search", "--index", index, "--retriever", missing, "lander")
    assert f"has no {missing} half" in error
    assert f"Choose the retriever {half}" in error
    measured = command("eval", "--index", index, "--questions", questions, "--json")
    assert set(json.loads(measured)) == {half}
    assert "3 passages" in command(
        "build", "--corpus", chunks, "--out", index, "-S", "index.encoder.dimension=2"
    )  # replaces it


def test_an_index_without_either_half_is_refused() -> None:
    with pytest.raises(ValidationError, match="bm25 and encoder are both null"):
        IndexConfig.model_validate({**INDEX.model_dump(), "bm25": None, "encoder": None})


def test_a_corpus_of_which_one_half_is_built_is_measured_by_that_half(tmp_path: Path) -> None:
    for name in ("both", "one"):
        write_jsonl(
            tmp_path / "chunks" / f"{name}.jsonl",
            make_chunks(["Vienna\nA city.", "Philae\nA lander."]),
        )
        question = Question(
            id="q",
            question="lander",
            golden_answers=("x",),
            metadata={"supporting_titles": ["Philae"]},
        )
        write_jsonl(tmp_path / "questions" / name / "val.jsonl", [question])
    added = {
        "corpus_vectors": {},
        "corpus_only": {"one": "dense"},
        "quality": {"split": "val", "cutoffs": [1]},
        "threads": 1,
    }
    section = IndexSection.model_validate({**INDEX.model_dump(), **added})
    build_indexes(
        tmp_path / "chunks", tmp_path / "index", section, 0, tmp_path / "work", {"one": [question]}
    )
    datasets = {name: DatasetConfig(corpus=name) for name in ("both", "one")}
    scores = measure_datasets(
        tmp_path / "index", tmp_path / "chunks", tmp_path / "questions", datasets, section.quality
    )
    assert {name: set(by_retriever) for name, by_retriever in scores.items()} == {
        "both": {"bm25", "dense", "hybrid"},
        "one": {"dense"},
    }
