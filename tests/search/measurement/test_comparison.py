import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Question
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.comparison import (
    COMPARED,
    RetrieverComparison,
    compare_retrievers,
    intervals,
)
from deepsearch_rl.search.names import IndexHalf
from deepsearch_rl.search.own_retriever import RETRIEVERS
from deepsearch_rl.search.ranking import LearningConfig
from deepsearch_rl.search.searcher import open_index
from tests.search.conftest import PASSAGES
from tests.settings import INDEX

LEARNING = LearningConfig(split="train", questions=100, ridge=0.001, folds=2)
TITLES = {
    "Where did the lander touch down?": "Philae",
    "Which probe carried the lander?": "Rosetta",
    "Which city is the capital of Austria?": "Vienna",
    "Which river flows through ten countries?": "Danube",
    "What small body is icy?": "Comet",
}
QUESTIONS = [
    Question.model_validate(
        {
            "id": text,
            "question": text,
            "golden_answers": ["x"],
            "metadata": {"supporting_titles": [title]},
        }
    )
    for text, title in TITLES.items()
]


def compare(
    index_dir: Path,
    questions: Sequence[Question] = QUESTIONS,
    retrievers: Sequence[str] = tuple(COMPARED),
    learning: LearningConfig | None = LEARNING,
) -> RetrieverComparison:
    return compare_retrievers(
        open_index(index_dir), index_dir, questions, retrievers, (1,), learning, seed=0, draws=50
    )


def test_every_retriever_is_scored_and_the_hybrid_is_compared_with_its_better_half(
    index_dir: Path,
) -> None:
    compared = compare(index_dir)
    assert list(compared.scores) == list(COMPARED)
    assert set(compared.scores) == {*RETRIEVERS, "rrf"}
    assert compared.gold == {"titles": 5}
    assert compared.scores["bm25"]["hits@1"].mean == 1.0
    better = max(compared.scores[name]["mrr@10"].mean for name in ("bm25", "dense"))
    gain = compared.scores["hybrid"]["mrr@10"].mean - better
    assert compared.hybrid_minus_better_half["mrr@10"].mean == pytest.approx(gain)


def test_the_mean_length_of_the_chunks_is_told(index_dir: Path) -> None:
    contents = [f"{title}\n{text}" for title, text in PASSAGES.items()]
    length = compare(index_dir, retrievers=("bm25",)).chunk_length
    assert length.words == pytest.approx(fmean(len(text.split()) for text in contents))
    assert length.characters == pytest.approx(fmean(map(len, contents)))


def test_an_interval_holds_the_mean_and_narrows_with_the_questions() -> None:
    few, many = (np.array([0.0, 1.0] * count) for count in (5, 500))
    for values in (few, many):
        assert intervals({"x": values}, 0, 200)["x"].mean == 0.5
    widths = [
        one.high - one.low
        for one in (intervals({"x": values}, 0, 200)["x"] for values in (few, many))
    ]
    # the standard error of a mean of n coin flips is 0.5 / sqrt(n)
    assert widths[0] == pytest.approx(2 * 1.96 * 0.5 / 10**0.5, rel=0.2)
    assert widths[1] == pytest.approx(2 * 1.96 * 0.5 / 1000**0.5, rel=0.2)


def test_too_few_questions_with_gold_evidence_are_refused(index_dir: Path) -> None:
    unknown = QUESTIONS[0].model_copy(update={"metadata": QUESTIONS[0].metadata.model_validate({})})
    with pytest.raises(ArtifactError, match="0 of 1 questions have gold evidence"):
        compare(index_dir, [unknown])


def test_questions_too_few_for_the_folds_of_the_hybrid_are_enough_without_it(
    index_dir: Path,
) -> None:
    learning = LEARNING.model_copy(update={"folds": 5})
    few = QUESTIONS[:3]
    compared = compare(index_dir, few, ("bm25", "dense", "rrf"), learning)
    assert compared.questions == 3
    with pytest.raises(ArtifactError, match=r"3 of 3 .* too few for a hybrid .* 5 folds"):
        compare(index_dir, few, (), learning)
    assert "hybrid" in compare(index_dir, few, (), None).scores


@pytest.mark.parametrize("half", ["bm25", "dense"])
@pytest.mark.parametrize("learning", [LEARNING, None], ids=["cross-validated", "stored"])
def test_an_index_of_one_half_has_no_hybrid(
    tmp_path: Path, chunks_path: Path, half: IndexHalf, learning: LearningConfig | None
) -> None:
    # Searched under the name hybrid, it is the half that is there
    fusion = INDEX.fusion.model_copy(update={"unlearned": half})
    other = {"bm25": "encoder", "dense": "bm25"}[half]
    config = INDEX.model_copy(update={"fusion": fusion, other: None})
    build_index(chunks_path, tmp_path / "index", config, seed=0)
    assert list(compare(tmp_path / "index", QUESTIONS[:1], (), learning).scores) == [half]
    with pytest.raises(ConfigError, match=rf"has the half {half} alone.*--retriever {half}"):
        compare(tmp_path / "index", QUESTIONS, (half, "hybrid"), learning)


@pytest.mark.parametrize("cutoffs", ["4,ten", "4,,10", "\N{SUPERSCRIPT TWO}", "0", ""])
def test_cutoffs_that_are_no_numbers_are_refused_and_not_left_out(cutoffs: str) -> None:
    asked = ["retrieve", "eval", "--index", "i", "--questions", "q.jsonl", "--cutoffs", cutoffs]
    with pytest.raises(ConfigError, match=r"should be numbers from 1 to 999999"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


def test_the_command_prints_a_table_and_json(index_dir: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "q.jsonl", QUESTIONS)
    asked = [
        "retrieve",
        "eval",
        "--index",
        str(index_dir),
        "--questions",
        str(tmp_path / "q.jsonl"),
        "--draws",
        "20",
    ]
    shown = CliRunner().invoke(app, asked, catch_exceptions=False).stdout
    assert "hybrid minus" in shown
    assert "5 questions (5 by titles); 5 chunks of " in shown
    printed = (
        CliRunner()
        .invoke(app, [*asked, "--retriever", "bm25", "--json"], catch_exceptions=False)
        .stdout
    )
    assert json.loads(printed)["scores"]["bm25"]["mrr@10"]["mean"] == 1.0
