"""Reports of profiles that lack something: sampled answers, IFEval, RL."""

import re
from pathlib import Path

import pytest

from deepsearch_rl.core.files import read_json, read_record, write_json
from deepsearch_rl.evaluate.f1_row import ModelEvaluation
from deepsearch_rl.evaluate.report.write_report import ReportConfig, Sources, write_report
from deepsearch_rl.evaluate.tables import F1Table
from deepsearch_rl.track.contents import best_model, headline, row_scores
from tools.readme import part

CONFIG = ReportConfig(comparisons=(("sft", "base"),), draws=200, rollouts=5, search_index=False)


@pytest.fixture
def greedy(results: Sources) -> Sources:
    """The results of a profile with evaluate.temperature: 0."""
    for folder in results.evaluate.values():
        evaluation = read_record(folder / "rows.json", ModelEvaluation)
        [row] = [row for row in evaluation.rows if not row.temperature]
        rows = (row.model_copy(update={"greedy_only": True}),)
        whole = evaluation.model_copy(update={"rows": rows})
        write_json(folder / "rows.json", whole.model_dump(mode="json"))
    return results


def test_greedy_answers_alone_are_the_main_figures_everywhere(
    greedy: Sources, tmp_path: Path
) -> None:
    write_report("tiny", greedy, CONFIG, 0, tmp_path)
    table = read_record(tmp_path / "f1_table.json", F1Table)
    assert [(row.model, row.kind, row.run_name) for row in table.main_rows("multihoprag")] == [
        (model, "", "multihoprag") for model in ("base", "sft", "rl", "sft_rl")
    ]
    assert table.greedy_rows("multihoprag") == {}
    assert [(each.run_name, each.main) for each in table.comparisons] == [("multihoprag", True)]
    assert table.temperature_text == "0"

    markdown = (tmp_path / "f1_table.md").read_text()
    assert not re.search(r"x sampled|\*greedy\*|F1, greedy", markdown)
    header, *rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows[:6]} == {header.count("|")}

    page = (tmp_path / "index.html").read_text()
    assert "F1 is of greedy answers." in page
    assert "sampled" not in page.split("<nav")[0]
    assert "against base" in page

    # What README and MLflow show
    assert part(table).splitlines()[3].startswith("| multihoprag | 40 x 1 |")
    assert part(table).count("| multihoprag") == 1
    sft = next(row for row in table.rows if row.model == "sft")
    assert row_scores(sft)["f1/multihoprag"] == sft.f1
    assert headline(table)["sft/f1"] == sft.f1
    assert best_model(table) == "sft_rl"
    assert read_json(tmp_path / "metrics.json")["f1"]["multihoprag"]["sft"] == round(sft.f1, 4)


def test_a_profile_without_ifeval_rl_and_filter_has_a_report(
    results: Sources, tmp_path: Path
) -> None:
    write_report("tiny", results._replace(ifeval={}, rl={}, filter=None), CONFIG, 0, tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "Instruction following" not in page
    assert "ifeval" not in read_json(tmp_path / "metrics.json")
    assert (tmp_path / "plots" / "rl.svg").is_file()
