"""Published scores stand beside our own of the same questions under the same setting, and nowhere else."""

from pathlib import Path

import pytest

from deepsearch_rl.chat.prompts import prompt_title
from deepsearch_rl.core.files import read_record, write_json
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.evaluate.f1_row import F1TableRow, IfevalScore, ModelEvaluation
from deepsearch_rl.evaluate.published import published_rows
from deepsearch_rl.evaluate.report.write_report import ReportConfig, Sources, write_report
from deepsearch_rl.evaluate.table_files import published_lines
from stages.report import question_origins
from tests.conftest import ROOT

CONFIG = ReportConfig(comparisons=(), draws=100, rollouts=5, search_index=False)
CORPUS = {
    "multihoprag": "multihoprag",
    "musique": "wiki",
    "2wikimultihopqa": "wiki",
    "hotpotqa": "wiki",
}

FOUND = {
    "multihoprag": {"retriever": "hybrid_rrf", "chunk_size": 200},
    "wiki": {"retriever": "dense", "chunk_size": 0},
}
"""How the published agents found their passages, by corpus."""


def origins(profile: str) -> dict[str, str]:
    values = find_profile(ROOT, profile)
    return question_origins(values.value("download"), values.value("evaluate")["split"])


def as_of_gpu_profile(row: F1TableRow) -> F1TableRow:
    """The row as if it were of 200 published questions under the gpu profile's setting."""
    prompt = prompt_title(find_profile(ROOT, "gpu").value("agent.prompt"))
    changes = {
        "corpus": CORPUS[row.dataset],
        "prompt": prompt,
        "n": 200,
        "generated": False,
        "controls": {},
    }
    return row.model_copy(update=changes | FOUND[CORPUS[row.dataset]])


@pytest.fixture
def gpu_results(results: Sources) -> Sources:
    """The results of a whole profile as those of the gpu profile, IFEval with the official prompts."""
    for folder in results.evaluate.values():
        evaluation = read_record(folder / "rows.json", ModelEvaluation)
        rows = tuple(map(as_of_gpu_profile, evaluation.rows))
        write_json(
            folder / "rows.json",
            evaluation.model_copy(update={"rows": rows}).model_dump(mode="json"),
        )
    for folder in results.ifeval.values():
        score = read_record(folder / "scores.json", IfevalScore)
        official = score.model_copy(update={"prompts": "real", "n": 541})
        write_json(folder / "scores.json", official.model_dump(mode="json"))
    return results._replace(origins=origins("gpu"))


@pytest.fixture
def row(gpu_results: Sources) -> F1TableRow:
    """The gpu profile's main figure of the fine-tuned model."""
    rows = read_record(gpu_results.evaluate["sft"] / "rows.json", ModelEvaluation).rows
    return next(row for row in rows if row.dataset == "multihoprag" and row.main)


@pytest.mark.slow
def test_the_gpu_profile_has_published_rows_with_their_source_in_table_page_and_mlflow(
    gpu_results: Sources, tmp_path: Path
) -> None:
    report = write_report("gpu", gpu_results, CONFIG, 0, tmp_path)
    lines = (tmp_path / "f1_table.md").read_text().splitlines()
    table = [
        [cell.strip() for cell in line.split("|")[1:4]] for line in lines if line.startswith("|")
    ]
    cells = {(name, dataset): f1 for dataset, name, f1 in table if name.endswith("published*")}
    sets = ("multihoprag", "musique", "2wikimultihopqa")
    for model, figures in {
        "Qwen3-4B-Instruct-2507 + SFT + RL": [".863", ".235", ".343"],
        "kimi-k2-turbo-preview": [".616", ".428", ".473"],
    }.items():
        assert [cells[f"*{model}, published*", dataset] for dataset in sets] == figures
        assert (f"*{model}, published*", "hotpotqa") not in cells
    (note,) = (line for line in lines if line.startswith("*Published*"))
    assert "github.com/ninehills/deepsearch-rl" in note
    page = (tmp_path / "index.html").read_text()
    assert "Qwen3-4B-Instruct-2507 + SFT + RL<small>published</small>" in page
    assert page.count(".819</span>") == 1, "IFEval, prompt strict"
    tracked = {(line["model"], line["dataset"]): line for line in published_lines(report.table)}
    assert tracked["Qwen3-4B-Instruct-2507", "multihoprag"]["f1"] == 0.521
    assert tracked["Qwen3-4B-Instruct-2507", "ifeval"]["prompt_strict"] == 0.8336
    assert {row.model for row in report.table.rows} == set(gpu_results.evaluate), "no row of ours"


def test_the_tiny_profile_has_none(results: Sources) -> None:
    assert origins("tiny") == {}
    rows: list[F1TableRow] = []
    for folder in results.evaluate.values():
        rows += read_record(folder / "rows.json", ModelEvaluation).rows
    ifeval = [
        read_record(folder / "scores.json", IfevalScore) for folder in results.ifeval.values()
    ]
    assert rows
    assert ifeval
    assert published_rows(rows, ifeval, origins("gpu")) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "multihoprag_thinking"},
        {"n": 199},
        {"top_k": 5},
        {"corpus": "wiki"},
        {"retriever": "hybrid_learned", "chunk_size": 256},
        {"retriever": "hybrid_learned"},
        {"retriever": ""},
        {"chunk_size": 256},
        {"dataset": "hotpotqa"},
        {"generated": True},
        {"temperature": 0.0},
    ],
    ids=str,
)
def test_a_score_of_another_task_has_no_published_row(
    row: F1TableRow, change: dict[str, object]
) -> None:
    assert published_rows([row], (), origins("gpu"))
    assert not published_rows([row.model_copy(update=change)], (), origins("gpu"))


def test_another_split_or_source_of_the_questions_has_no_published_row(row: F1TableRow) -> None:
    download = find_profile(ROOT, "gpu").value("download")
    assert not published_rows([row], (), origins("tiny"))
    assert not published_rows([row], (), question_origins(download, "train"))
    assert not published_rows([row], (), question_origins({**download, "source": "folder"}, "val"))


def test_a_variant_stands_beside_the_figures_of_its_own_prompt(row: F1TableRow) -> None:
    variant = row.model_copy(
        update={"prompt": "multihoprag_published", "variant": "published_prompt"}
    )
    figures = {row.model: row.score for row in published_rows([variant], (), origins("gpu"))}
    assert figures["Qwen3-4B-Instruct-2507"] == 0.453


def test_search_r1s_exact_match_stands_beside_whole_development_sets_alone(row: F1TableRow) -> None:
    whole = row.model_copy(
        update={"dataset": "hotpotqa", "corpus": "wiki", "prompt": "search_tags", "n": 7405}
        | FOUND["wiki"]
    )
    figures = published_rows([whole], (), origins("gpu"))
    assert {(row.metric, row.score) for row in figures} == {
        ("em", 0.284),
        ("em", 0.324),
        ("em", 0.433),
        ("em", 0.37),
    }


def test_a_published_score_stands_beside_the_rows_of_its_task_whatever_rows_follow(
    row: F1TableRow,
) -> None:
    other = row.model_copy(update={"model": "zz", "retriever": "dense"})
    published = published_rows([row], (), origins("gpu"))
    assert published_rows([row, other], (), origins("gpu")) == published
    assert published_rows([other, row], (), origins("gpu")) == published
