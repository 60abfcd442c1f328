"""Rows of variants in the table: shown beside the profile's own, never in place of them, never compared."""

import csv
from pathlib import Path

from deepsearch_rl.core.files import read_record, write_json
from deepsearch_rl.evaluate.f1_row import ModelEvaluation
from deepsearch_rl.evaluate.report.write_report import Sources
from deepsearch_rl.evaluate.table_files import markdown, metrics, write_table
from deepsearch_rl.evaluate.tables import F1Table, build_table

PAIRS = (("sft", "base"),)


def with_variants(results: Sources) -> F1Table:
    """The finished profile's table, its sft and base answering musique under a variant as well."""
    for model in ("sft", "base"):
        folder = results.evaluate[model]
        evaluation = read_record(folder / "rows.json", ModelEvaluation)
        own = next(row for row in evaluation.rows if row.dataset == "musique")
        right = {"f1": 1.0, "f1_high": 1.0, "failures": {}, "controls": {}}
        changed = {"variant": "top5", "top_k": 5, **right}
        rows = sorted(
            (*evaluation.rows, own.model_copy(update=changed)), key=lambda row: row.sort_key
        )
        write_json(
            folder / "rows.json",
            evaluation.model_copy(update={"rows": tuple(rows)}).model_dump(mode="json"),
        )
    return build_table("tiny", results.evaluate, PAIRS, 0, 100)


def test_a_variant_has_a_line_of_its_own_beside_the_profiles_own_figure(results: Sources) -> None:
    plain = build_table("tiny", results.evaluate, PAIRS, 0, 100)
    table = with_variants(results)
    assert [row for row in table.rows if not row.variant] == list(plain.rows)
    assert table.comparisons == plain.comparisons
    text = markdown(table)
    before, _, after = text.partition("### The same under other settings")
    assert before.strip() == markdown(plain).partition("### Differences")[0].strip()
    lines = [line for line in after.splitlines() if line.startswith("| top5")]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    assert [line[2:4] for line in cells] == [["base", "musique"], ["sft", "musique"]]
    assert all(line[4].startswith("1.000 [") and line[8] == "5" for line in cells)


def test_metrics_and_csv_name_a_variant_apart_from_the_main_figure(
    results: Sources, tmp_path: Path
) -> None:
    table = with_variants(results)
    figures = metrics(table, ())
    assert figures["f1_top5"] == {"musique": {"base": 1.0, "sft": 1.0}}
    assert figures["f1"]["musique"]["sft"] < 1.0
    write_table(table, (), tmp_path)
    lines = list(csv.DictReader((tmp_path / "f1_table.csv").open()))
    runs = [
        (line["variant"], line["top_k"])
        for line in lines
        if (line["model"], line["dataset"]) == ("sft", "musique")
    ]
    assert runs == [("", "3"), ("top5", "5")]
