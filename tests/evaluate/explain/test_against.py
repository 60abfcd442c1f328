"""A run beside a published row: what differs is named, what can be computed is computed, the rest is unknown."""

from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.core.errors import ConfigError, UnknownNameError
from deepsearch_rl.evaluate.explain.against import compare_published, score_run, subset_change
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.explain.explain import choice_of
from deepsearch_rl.evaluate.explain.explanation import explain_run
from deepsearch_rl.evaluate.explain.judging import Corpus, JudgedRun, judge_run
from deepsearch_rl.evaluate.explain.records import AgainstReport, Setting
from deepsearch_rl.evaluate.explain.runs import read_run
from deepsearch_rl.evaluate.published import read_published
from deepsearch_rl.search.searcher import open_index
from tests.evaluate.explain.planted import questions

SETTING = Setting(
    dataset="hotpotqa",
    split="val",
    generated=False,
    corpus="wiki",
    prompt="search_tags",
    top_k=3,
    chunk_size=0,
    retriever="dense",
    temperature=0.7,
    samples=8,
)


@pytest.fixture(scope="module")
def judged(planted_folder: Path) -> tuple[JudgedRun, Corpus]:
    searcher = open_index(planted_folder / "index")
    corpus = Corpus(searcher.chunks, searcher)
    return judge_run(read_run(planted_folder / "run.jsonl"), questions(), corpus, 3), corpus


def beside(judged: tuple[JudgedRun, Corpus], name: str, **changes: object) -> AgainstReport:
    run, corpus = judged
    setting = SETTING.model_copy(update=changes)
    report = explain_run(run, setting, corpus, seed=0, draws=100)
    [against] = compare_published(run, report, name, "the first 16", None, seed=0, draws=100)
    return against


def verdicts(against: AgainstReport) -> dict[str, str]:
    return {line.what: line.verdict for line in against.settings}


def test_what_differs_is_named_and_what_the_source_leaves_open_is_unknown(
    judged: tuple[JudgedRun, Corpus],
) -> None:
    against = beside(judged, "Search-R1 Qwen2.5-7B")
    assert not against.comparable
    assert verdicts(against) == {
        "split": "unknown",
        "number of questions": "differs",
        "choice of questions": "differs",
        "passages per search": "same",
        "prompt": "same",
        "corpus": "same",
        "questions whose evidence the corpus has": "unknown",
        "passage length": "same",
        "retriever": "same",
        "temperature": "unknown",
        "answers per question": "unknown",
        "metric": "differs",
        "normalisation": "same",
    }
    other = verdicts(beside(judged, "Search-R1 Qwen2.5-7B", retriever="bm25", split="train"))
    assert other["retriever"] == other["split"] == "differs"
    assert (
        verdicts(beside(judged, "Search-R1 Qwen2.5-7B", retriever=None))["retriever"] == "unknown"
    )
    # A source that names no split has other questions than generated ones all the same
    generated = verdicts(beside(judged, "CoRAG-8B", generated=True))
    assert generated["split"] == "differs"


def test_what_the_run_can_show_is_no_unknown_and_everything_else_is(
    judged: tuple[JudgedRun, Corpus],
) -> None:
    em = beside(judged, "Search-R1 Qwen2.5-7B")
    assert "metric" not in em.unknown
    assert "number of questions" in em.unknown, "7,405 questions cannot be made of 16"
    unnamed = beside(judged, "tinker-cookbook Qwen3-4B-Instruct-2507")
    assert unnamed.metric is None
    assert {"metric", "retriever", "prompt", "split"} <= set(unnamed.unknown)


def test_what_a_source_says_of_its_answers_is_compared(judged: tuple[JudgedRun, Corpus]) -> None:
    published = beside(judged, "Qwen3-4B-Instruct-2507 + SFT", dataset="musique", samples=1)
    lines = {line.what: line for line in published.settings}
    assert lines["choice of questions"].published == "the first 200"
    assert [lines[name].verdict for name in ("temperature", "answers per question")] == [
        "same",
        "same",
    ]

    # One answer of several is scored as the publication did; the choice of 200 of 16 cannot be
    several = beside(judged, "Qwen3-4B-Instruct-2507 + SFT", dataset="musique", samples=8)
    assert {line.what: line.verdict for line in several.settings}["answers per question"] == (
        "differs"
    )
    assert "answers per question" not in several.unknown
    assert "choice of questions" in several.unknown


def test_the_choice_of_questions_says_whether_they_are_the_first_of_their_file() -> None:
    names = ["c", "a", "b"]
    assert choice_of(names, names) == "all"
    assert choice_of(["c", "a"], names) == "the first 2"
    assert choice_of(["c", "b"], names) == "2 of 3, not the first ones"


def test_the_recomputed_scores_are_those_of_the_run_scored_so(
    judged: tuple[JudgedRun, Corpus],
) -> None:
    run, _ = judged
    against = beside(judged, "Search-R1 Qwen2.5-7B")
    lines = {line.what: line for line in against.recomputed}
    scored = score_run(run.run.answers)
    f1 = float(scored.f1.mean())
    em = lines["another metric, the published one"]
    assert (em.metric, em.score) == ("em", pytest.approx(float(scored.metrics["em"].mean())))
    assert em.change.mean == pytest.approx(em.score - f1)
    assert em.change.low <= em.change.mean <= em.change.high

    answerable = lines["answerable questions alone"]
    assert answerable.n == 15
    assert answerable.change.mean == pytest.approx(answerable.score - f1)
    assert lines["questions whose evidence the corpus has"].n == 14
    forgiven = lines["right answers that the metric missed count"]
    report = explain_run(run, SETTING, None, seed=0, draws=10)
    assert forgiven.change.mean == pytest.approx(report.causes[Cause.METRIC].lost.mean)
    assert lines["without answers that a server failed"].change.mean > 0
    assert "one answer per question, the first" in lines


def test_a_row_that_is_not_there_names_those_that_are(judged: tuple[JudgedRun, Corpus]) -> None:
    with pytest.raises(UnknownNameError, match=r"published row of hotpotqa 'CoRAG'.*CoRAG-8B"):
        beside(judged, "CoRAG")
    with pytest.raises(ConfigError, match="--dataset hotpotqa"):
        beside(judged, "CoRAG-8B", dataset="")


def test_the_change_of_a_subset_has_the_interval_of_a_paired_bootstrap() -> None:
    generator = np.random.default_rng(1)
    values_Q = generator.random(300)
    everything = subset_change(values_Q, np.ones(300, dtype=bool), 0, 200)
    assert everything.mean == pytest.approx(0)
    assert (everything.low, everything.high) == (pytest.approx(0), pytest.approx(0))

    chosen_Q = values_Q > 0.5
    change = subset_change(values_Q, chosen_Q, 0, 500)
    assert change.mean == pytest.approx(values_Q[chosen_Q].mean() - values_Q.mean())
    assert 0.2 < change.low < change.mean < change.high < 0.3


def test_every_published_block_of_a_source_that_leaves_the_task_open_stands_beside_no_run() -> None:
    open_blocks = [block for block in read_published() if block.task.questions is None]
    assert {block.source.partition(",")[0] for block in open_blocks} == {
        "github.com/thinking-machines-lab/tinker-cookbook",
        "github.com/RUC-NLPIR/FlashRAG",
        "github.com/TIGER-AI-Lab/verl-tool",
        "github.com/AMAP-ML/Tree-GRPO",
        "arXiv 2501.14342",
    }
    assert all(block.task.n is None for block in open_blocks)
