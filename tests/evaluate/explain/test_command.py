"""`deepsearch explain` on planted runs and on an evaluated model's folder."""

import json
import shutil
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_json, read_jsonl, sha256_file, write_json, write_jsonl
from deepsearch_rl.core.records import Trajectory
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.explain.explain import explain_evaluations
from deepsearch_rl.evaluate.explain.records import ExplainReport
from deepsearch_rl.evaluate.explain.sources import Searched
from deepsearch_rl.evaluate.f1_row import F1TableRow, ModelEvaluation, RowKey
from deepsearch_rl.evaluate.score import build_row
from deepsearch_rl.search.manifest import digest_index
from tests.browsing import chromium
from tests.evaluate.explain.planted import planted

__all__ = ["chromium"]


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["explain", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def explain(*arguments: object) -> ExplainReport:
    return ExplainReport.model_validate_json(run(*arguments, "--json", "--draws", 50))


def add_up(report: ExplainReport) -> None:
    for each in report.runs:
        lost = sum(entry.lost.mean for entry in each.causes.values())
        assert lost == pytest.approx(1 - each.f1.mean, abs=1e-12)
        for group in (*each.types.values(), *each.hops.values()):
            lost = sum(interval.mean for interval in group.lost.values())
            assert lost == pytest.approx(1 - group.f1.mean, abs=1e-12)


def test_a_file_with_questions_and_an_index_is_explained_with_groups_and_examples(
    planted_folder: Path,
) -> None:
    path = planted_folder / "run.jsonl"
    options = (
        "--questions",
        planted_folder / "questions.jsonl",
        "--index",
        planted_folder / "index",
    )
    report = explain(path, *options)
    [each] = report.runs
    add_up(report)
    assert each.answers == 60
    assert each.passages == 33
    assert each.evidence == {"facts": 15, "unanswerable": 1}
    assert each.causes.keys() >= {"bad_query", "index_misses", "metric", "infrastructure"}
    assert each.causes[Cause.METRIC].details == {"alias": 2, "extra words": 4, "format": 1}
    assert set(each.hops) == {"1", "2"}
    assert sum(group.n for group in each.types.values()) == 13
    assert all(1 <= len(entry.examples) <= 3 for entry in each.causes.values())
    shown = {example.id for example in each.examples}
    assert shown >= {name for entry in each.causes.values() for name in entry.examples}
    assert each.ceilings.in_corpus is not None
    assert each.ceilings.in_corpus.whole.mean == pytest.approx(14 / 15)
    assert report.metrics("")["model"]["lost/not_found"] == 0


def test_a_corpus_in_place_of_an_index_gives_the_same_causes_and_says_what_ranks(
    planted_folder: Path,
) -> None:
    path = planted_folder / "run.jsonl"
    questions = ("--questions", planted_folder / "questions.jsonl")
    [by_corpus] = explain(path, *questions, "--corpus", planted_folder / "corpus.jsonl").runs
    [by_index] = explain(path, *questions, "--index", planted_folder / "index").runs
    assert by_corpus.causes == by_index.causes
    assert any("BM25 over the corpus, built here" in note for note in by_corpus.notes)


@pytest.mark.slow
def test_without_gold_evidence_the_page_says_that_the_answer_stands_in(
    planted_folder: Path, tmp_path: Path
) -> None:
    page = tmp_path / "explain.html"
    output = run(
        planted_folder / "run.jsonl", "--corpus", planted_folder / "corpus.jsonl", "--page", page
    )
    html = page.read_text()
    assert "14 of 16 questions have no gold evidence: their answer" in html
    assert "1 of 16 questions have neither gold evidence nor an answer" in html
    assert "14 of 16 questions have no gold evidence" in output
    assert "http" not in html.replace("http://www.w3.org", "")
    assert str(tmp_path) not in html
    for link in html.split('href="#')[1:]:
        target = link.partition('"')[0]
        assert f'id="{target}"' in html, target


@pytest.mark.slow
def test_a_link_to_an_example_opens_it_and_the_page_fits_its_window(
    planted_folder: Path, tmp_path: Path, chromium: webdriver.Chrome
) -> None:
    page = tmp_path / "explain.html"
    questions = ("--questions", planted_folder / "questions.jsonl")
    run(
        planted_folder / "run.jsonl",
        *questions,
        "--index",
        planted_folder / "index",
        "--page",
        page,
    )
    chromium.get(page.as_uri())
    link = chromium.find_element(By.CSS_SELECTOR, "td a")
    name = (link.get_attribute("href") or "").partition("#")[2]
    example = chromium.find_element(By.ID, name)
    assert not example.get_property("open")
    chromium.execute_script("arguments[0].click()", link)
    WebDriverWait(chromium, 10).until(lambda _: example.get_property("open"))
    assert "golden answers" in example.text
    width = chromium.execute_script("return document.documentElement.scrollWidth - innerWidth")
    assert width <= 0
    assert chromium.get_log("browser") == []


@pytest.fixture
def graph(planted_folder: Path, tmp_path: Path) -> Path:
    """The data of a graph with two models; the second one has nothing but right answers to the same questions."""
    data = tmp_path / "data" / "own"
    (data / "questions" / "musique").mkdir(parents=True)
    (data / "chunks").mkdir()
    questions = data / "questions" / "musique" / "val.jsonl"
    shutil.copy(planted_folder / "questions.jsonl", questions)
    chunks = data / "chunks" / "own.jsonl"
    shutil.copy(planted_folder / "corpus.jsonl", chunks)
    shutil.copytree(planted_folder / "index", data / "index" / "own")
    first = [case.rollout for case in planted() if case.rollout.sample == 0]
    gold = [each.model_copy(update={"answer": each.golden_answers[0]}) for each in first]
    inputs = {
        "questions/musique/val": sha256_file(questions),
        "index/own": digest_index(data / "index" / "own"),
    }

    for model, rollouts in {"base": first, "sft": gold}.items():
        folder = data / "evaluate" / model
        folder.mkdir(parents=True)
        row = make_row(model, rollouts)
        write_jsonl(folder / row.rollouts_file, rollouts)
        evaluation = ModelEvaluation(
            model=model, seed=0, settings_sha256="x", inputs=inputs, rows=(row,)
        )
        write_json(folder / "rows.json", evaluation.model_dump(mode="json"))

    return data


def make_row(model: str, rollouts: list[Trajectory]) -> F1TableRow:
    key = RowKey(
        model=model,
        checkpoint="own",
        dataset="musique",
        corpus="own",
        prompt="tiny",
        top_k=3,
        chunk_size=0,
        retriever="bm25",
        temperature=0.7,
        samples=1,
        seed=0,
    )
    return build_row(key, rollouts, generated=True, draws=20)


def test_the_folder_of_evaluated_models_needs_no_option_and_shows_what_training_moved(
    graph: Path,
) -> None:
    report = explain(graph / "evaluate")
    add_up(report)
    assert [each.model for each in report.runs] == ["base", "sft"]
    assert report.runs[0].setting.split == "val"
    assert report.runs[0].setting.retriever == "bm25"
    [movement] = report.movements
    assert (movement.model, movement.other) == ("sft", "base")
    gained = sum(interval.mean for interval in movement.lost.values())
    assert gained == pytest.approx(-movement.f1.mean, abs=1e-12)

    rollouts = list(
        read_jsonl(graph / "evaluate" / "sft" / "musique.search.t0.7.jsonl", Trajectory)
    )
    [alone] = explain(graph / "evaluate" / "sft" / "musique.search.t0.7.jsonl").runs
    assert alone == report.runs[1]
    assert alone.answers == len(rollouts)


def test_what_a_killed_evaluation_left_beside_the_models_is_no_model(graph: Path) -> None:
    shutil.copytree(graph / "evaluate" / "sft", graph / "evaluate" / ".sft.earlier")
    assert [each.model for each in explain(graph / "evaluate").runs] == ["base", "sft"]


def test_the_reports_stage_finds_what_the_command_finds_and_less_without_the_index(
    graph: Path,
) -> None:
    folders = {model: graph / "evaluate" / model for model in ("base", "sft")}
    questions = {"musique": graph / "questions" / "musique" / "val.jsonl"}
    searched = Searched(graph / "index", graph / "chunks")
    report = explain_evaluations(folders, questions, searched, seed=0, draws=50, movement_draws=50)
    assert report == explain(graph / "evaluate")

    alone = explain_evaluations(folders, questions, None, seed=0, draws=50, movement_draws=50)
    add_up(alone)
    causes = alone.runs[0].causes.keys()
    assert Cause.NOT_FOUND in causes
    assert not causes & {Cause.NOT_IN_CORPUS, Cause.BAD_QUERY, Cause.INDEX_MISSES}
    assert alone.runs[0].f1 == report.runs[0].f1


def test_questions_other_than_those_of_the_run_are_refused(graph: Path) -> None:
    questions = graph / "questions" / "musique" / "val.jsonl"
    questions.write_text(questions.read_text().replace("sit?", "sit"))
    result = CliRunner().invoke(app, ["explain", str(graph / "evaluate" / "sft")])
    assert "is another one than the run was made with" in str(result.exception)


def write_control(path: Path, **answer: object) -> Path:
    """Write a control's answer to the first question of two hops."""
    row = {"id": "two-0", "question": "Where?", "golden_answers": ["Ulverton"], **answer}
    path.write_text(json.dumps(row) + "\n")
    return path


def test_controls_stand_beside_the_score_on_the_same_questions(
    planted_folder: Path, tmp_path: Path
) -> None:
    control = write_control(tmp_path / "gold.jsonl", pred="Ulverton")
    run_path = planted_folder / "run.jsonl"
    [each] = explain(run_path, "--control", f"gold_passage={control}").runs
    figure = each.ceilings.controls["gold_passage"]
    assert (figure.n, figure.f1.mean) == (1, 1.0)
    assert 0 < figure.searched_f1 < 1
    result = CliRunner().invoke(app, ["explain", str(run_path), "--control", f"gold={control}"])
    assert "unknown control 'gold'" in str(result.exception)


def test_failures_of_a_control_are_counted_by_kind_on_the_page(
    planted_folder: Path, tmp_path: Path
) -> None:
    control = write_control(tmp_path / "none.jsonl", pred="", failed=True)
    page = tmp_path / "page.html"
    options = ("--control", f"no_search={control}", "--page", str(page))
    [each] = explain(planted_folder / "run.jsonl", *options).runs
    assert each.ceilings.controls["no_search"].failures == {"failed": 1}
    assert "without an answer: 1 failed<" in page.read_text()


def test_runs_of_one_name_are_told_apart_by_their_files(
    planted_folder: Path, tmp_path: Path
) -> None:
    shutil.copy(planted_folder / "run.jsonl", tmp_path / "run.jsonl")
    report = explain(planted_folder / "run.jsonl", tmp_path / "run.jsonl")
    names = [each.model for each in report.runs]
    assert names == [f"model ({folder.name}/run.jsonl)" for folder in (planted_folder, tmp_path)]
    [movement] = report.movements
    assert movement.f1.mean == movement.f1.low == movement.f1.high == 0


def test_an_index_and_a_corpus_together_are_refused(planted_folder: Path) -> None:
    result = CliRunner().invoke(
        app,
        [
            *("explain", str(planted_folder / "run.jsonl")),
            *("--index", "a", "--corpus", "b"),
        ],
    )
    assert "either --index or --corpus" in str(result.exception)


def test_named_questions_and_index_stand_in_for_those_that_a_run_has_lost(
    graph: Path, planted_folder: Path
) -> None:
    before = explain(graph / "evaluate" / "sft")
    shutil.rmtree(graph / "questions")
    shutil.rmtree(graph / "index")
    questions = ("--questions", planted_folder / "questions.jsonl")
    index = ("--index", planted_folder / "index")
    result = CliRunner().invoke(app, ["explain", str(graph / "evaluate"), *map(str, questions)])
    assert "index/own does not exist, and the run was made with it" in str(result.exception)
    assert explain(graph / "evaluate" / "sft", *questions, *index) == before
    corpus = ("--corpus", planted_folder / "corpus.jsonl")
    [by_corpus] = explain(graph / "evaluate" / "sft", *questions, *corpus).runs
    assert by_corpus.causes == before.runs[0].causes


def test_only_the_chosen_question_set_has_to_be_there(graph: Path) -> None:
    rows = read_json(graph / "evaluate" / "sft" / "rows.json")
    rows["rows"].append(rows["rows"][0] | {"dataset": "hotpotqa"})
    write_json(graph / "evaluate" / "sft" / "rows.json", rows)
    result = CliRunner().invoke(app, ["explain", str(graph / "evaluate" / "sft")])
    assert "questions/hotpotqa/val.jsonl does not exist" in str(result.exception)
    [run] = explain(graph / "evaluate" / "sft", "--dataset", "musique").runs
    assert run.dataset == "musique"


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--chunks", "c.jsonl"], "name that too"),
        (["--chunks", "c.jsonl", "--corpus", "d.jsonl"], "name that too"),
        (["--retriever", "dense", "--corpus", "d.jsonl"], "leave --retriever out"),
        (["--control", "gold_passage"], "gold_passage=FILE"),
        (["--control", "gold_passage="], "gold_passage=FILE"),
    ],
)
def test_an_option_that_another_one_leaves_without_use_is_refused(
    options: list[str], remedy: str, planted_folder: Path
) -> None:
    result = CliRunner().invoke(app, ["explain", str(planted_folder / "run.jsonl"), *options])
    assert isinstance(result.exception, ConfigError)
    assert remedy in str(result.exception)


def test_a_folder_named_as_the_corpus_is_an_index(planted_folder: Path) -> None:
    run_path = planted_folder / "run.jsonl"
    by_index = explain(run_path, "--index", planted_folder / "index")
    assert explain(run_path, "--corpus", planted_folder / "index") == by_index
