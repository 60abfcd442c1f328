"""Gold of questions in FlashRAG's layout against an index."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.records import Question
from deepsearch_rl.data import flashrag
from deepsearch_rl.search.build import IndexSection, build_index

Line = dict[str, Any]


QUESTION = {"id": "q", "question": "Who?", "golden_answers": ["x"]}


def write(path: Path, *lines: Line) -> Path:
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def questions(path: Path, *lines: Line) -> list[Question]:
    return list(flashrag.read_questions(write(path / "questions.jsonl", *lines)))


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index over two passages."""
    lines = [
        {"id": "1", "title": "Ed Wood", "text": "A film of 1994."},
        {"id": "2", "title": "Water", "text": "Wet."},
    ]
    write(tmp_path / "passages.jsonl", *lines)
    settings = load_preset("retrieve").with_overrides({"index.encoder.dimension": 2})
    config = settings.section("index", IndexSection).of("")
    build_index(tmp_path / "passages.jsonl", tmp_path / "index", config, 0)
    return tmp_path / "index"


def run(*arguments: object) -> str:
    """What a command prints."""
    result = CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def measured(index: Path, questions: Path) -> dict[str, Any]:
    """Return BM25's scores on questions."""
    files = ("--index", index, "--questions", questions)
    return json.loads(run("retrieve", "eval", "--retriever", "bm25", *files, "--json"))["bm25"]


def test_gold_that_the_corpus_does_not_have_is_counted_and_listed(
    tmp_path: Path, index: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A score of zero because of a title that is spelled too differently is not silent."""
    lines = [
        QUESTION | {"id": "1", "supporting_titles": ["ed_wood", "Waters"]},
        QUESTION | {"id": "2", "supporting_doc_ids": [2, "9"]},
        QUESTION | {"id": "3", "supporting_titles": ["Somebody Else"]},
    ]
    path = write(tmp_path / "q.jsonl", *lines)
    measured(index, path)
    missing = "3 of 5 gold documents are not in the corpus: 'Waters', 'Somebody Else', '9'"
    assert missing in caplog.text


@pytest.mark.parametrize(
    "supporting_facts",
    [
        {"title": ["Ed Wood", "Ed Wood"], "sent_id": [0, 2]},
        [["Ed Wood", 0], ["Ed Wood", 2]],
        '{"title": ["Ed&#32;Wood"], "sent_id": [0]}',
    ],
)
def test_supporting_facts_of_hotpotqa_are_gold_evidence(
    tmp_path: Path, index: Path, supporting_facts: object
) -> None:
    row = QUESTION | {"question": "Who made Ed Wood?"}
    of_metadata = write(
        tmp_path / "a.jsonl", row | {"metadata": {"supporting_facts": supporting_facts}}
    )
    beside = write(tmp_path / "b.jsonl", row | {"supporting_facts": supporting_facts})
    for path in (of_metadata, beside):
        scores = measured(index, path)
        assert (scores["n"], scores["evidence_recall@4"]) == (1, 1.0)


FLASHRAG = {
    "id": 7, "question": "Who made Ed Wood?", "golden_answers": ["Tim Burton"], "split": "dev", "level": "hard",
    "metadata": {"supporting_titles": ["Ed Wood"], "self": 1},
}  # fmt: skip


def test_flashrags_question_files_are_taken_wherever_questions_are(
    tmp_path: Path, index: Path
) -> None:
    """Extra keys, whole numbers as ids and gzip, in conversions, measurements and builds."""
    path = tmp_path / "dev.jsonl.gz"
    with gzip.open(path, "wt") as lines:
        lines.writelines(json.dumps(FLASHRAG | {"id": number}) + "\n" for number in range(6))
    run("trajectories", "convert", path, tmp_path / "out.jsonl", "--to", "rlinf")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 6
    scores = measured(index, path)
    assert (scores["n"], scores["mrr@10"]) == (6, 1.0)
    passages = index.with_name("passages.jsonl")
    built = run(
        "retrieve", "build", "--corpus", passages, "--out", tmp_path / "new", "--questions", path
    )
    assert "2 passages" in built
