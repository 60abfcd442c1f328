import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError, CheckFailedError, UnknownNameError
from deepsearch_rl.core.files import read_json, read_jsonl, read_record, write_json, write_jsonl
from deepsearch_rl.core.records import Trajectory
from deepsearch_rl.evaluate.comparisons import holm
from deepsearch_rl.evaluate.explain.records import ExplainReport
from deepsearch_rl.evaluate.f1_row import run_file
from deepsearch_rl.evaluate.report.write_report import ReportConfig, Sources, write_report
from deepsearch_rl.evaluate.table_files import (
    CSV_COLUMNS,
    interval_text,
    p_text,
    score_text,
    signed,
)
from deepsearch_rl.evaluate.tables import F1Table, build_table
from tests.evaluate.conftest import sources_in

CONFIG = ReportConfig(
    comparisons=(("sft", "base"), ("sft_rl", "sft")), draws=200, rollouts=5, search_index=False
)
CONTRACT = [
    "model", "checkpoint", "dataset", "corpus", "prompt", "top_k", "chunk_size", "retriever",
    "temperature", "samples", "seed",
    "variant", "trained_with_other", "n", "em", "f1", "f1_low", "f1_high", "acc", "precision", "recall", "mean_rounds",
    "mean_tool_calls", "failures",
]  # fmt: skip
"""The fields of a row as docs/contracts.md, section 7, lists them."""
SCORE_OF_RL = r'<th scope="row">rl</th><td>([.\d]+)'


class Page(HTMLParser):
    """Collects what the tests ask about: ids, links, addresses that a browser would fetch, and the text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in {"src", "href", "xlink:href"} and not (value or "").startswith("#"):
                self.fetched.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def report(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a written report."""
    folder = tmp_path_factory.mktemp("report")
    write_report("tiny", sources_in(finished), CONFIG, 0, folder)
    return folder


@pytest.mark.slow
def test_a_report_is_a_function_of_its_sources_alone(
    report: Path, results: Sources, tmp_path: Path
) -> None:
    write_report("tiny", results, CONFIG, 0, tmp_path / "again")
    files = sorted(path.relative_to(report) for path in report.rglob("*.*"))
    assert {path.suffix for path in files} == {".json", ".md", ".csv", ".html", ".svg", ".png"}
    for path in files:
        assert (report / path).read_bytes() == (tmp_path / "again" / path).read_bytes(), path
    text = "".join((report / path).read_text() for path in files if path.suffix != ".png")
    assert not re.search(r"20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d", text)


def test_rows_are_keyed_as_the_contract_says_in_every_form(report: Path) -> None:
    rows = read_json(report / "f1_table.json")["rows"]
    assert all(set(CONTRACT) < set(row) for row in rows)
    assert list(CSV_COLUMNS) == [*CONTRACT, "generated"]
    keys = [(row["dataset"], row["model"], -row["temperature"]) for row in rows]
    assert keys == sorted(set(keys))
    assert len(keys) == 4 * 5  # every model on four sets, on the first greedily as well
    lines = list(csv.DictReader(io.StringIO((report / "f1_table.csv").read_text())))
    assert [(line["model"], line["dataset"], float(line["f1"])) for line in lines] == [
        (row["model"], row["dataset"], row["f1"]) for row in rows
    ]
    main = next(row for row in rows if row["model"] == "sft" and row["dataset"] == "musique")
    assert read_json(report / "metrics.json")["f1"]["musique"]["sft"] == round(main["f1"], 4)
    assert f"{main['f1']:.3f}"[1:] in (report / "f1_table.md").read_text()
    first = next(row for row in rows if row["model"] == "sft" and row["samples"] == 3)
    [line] = [line for line in lines if line["model"] == "sft" and line["samples"] == "3"]
    assert [float(line["pass_at_1"]), float(line["pass_at_2"])] == list(first["pass_at"].values())
    assert read_json(report / "metrics.json")["pass_at_2"]["multihoprag"]["sft"] == round(
        first["pass_at"]["2"], 4
    )
    assert first["em"] == first["pass_at"]["1"] < first["pass_at"]["2"]


def test_the_main_table_has_greedy_f1_beside_sampled_f1_then_searches_and_pass_at_k(
    report: Path,
) -> None:
    rows = F1Table.model_validate(read_json(report / "f1_table.json")).rows
    sampled, greedy = (row for row in rows if (row.model, row.dataset) == ("sft_rl", "multihoprag"))
    lines = [line.split(" | ") for line in (report / "f1_table.md").read_text().splitlines()]
    head, first = ([cell.strip(" |") for cell in line] for line in (lines[2], lines[7]))
    assert head[:7] == ["set", "model", "F1", "F1, greedy", "searches", "pass@1", "pass@2"]
    passes = [score_text(share) for share in sampled.pass_at.values()]
    searches = f"{sampled.mean_tool_calls:.2f}"
    assert first[:7] == [
        "multihoprag (40 x 3)",
        "sft_rl",
        *map(interval_text, (sampled, greedy)),
        searches,
        *passes,
    ]
    assert sampled.mean_tool_calls == 2.5
    page = (report / "index.html").read_text()
    titles = re.search(r"40 questions x 3</caption>.*?</tr>", page, re.DOTALL)
    assert titles
    assert re.findall(r'"col">(.*?)</th>', titles[0]) == ["model", *head[2:7]]


def test_the_page_and_a_file_say_where_every_model_loses_its_points(report: Path) -> None:
    lost = read_record(report / "lost_points.json", ExplainReport)
    rows = F1Table.model_validate(read_json(report / "f1_table.json")).rows
    f1 = {(row.model, row.dataset): row.f1 for row in rows if not row.kind}
    assert len(lost.runs) == len(f1) == 16
    for run in lost.runs:
        assert run.f1.mean == pytest.approx(f1[run.model, run.dataset], abs=1e-5)
        total = sum(entry.lost.mean for entry in run.causes.values())
        assert total == pytest.approx(1 - run.f1.mean, abs=1e-9)
        assert run.examples == ()

    page = (report / "index.html").read_text()
    section = page.partition('<h2 id="lost_points">')[2].partition("</section>")[0]
    assert section.count('<figure class="bars">') == section.count("<svg") == 4
    assert section.count("What changed from one model to the next") == 8  # captions and labels
    moved = {(move.model, move.other) for move in lost.movements}
    assert moved == {("sft", "base"), ("rl", "base"), ("sft_rl", "sft")}


def test_what_training_moved_of_f1_has_the_interval_of_the_comparison(report: Path) -> None:
    table = F1Table.model_validate(read_json(report / "f1_table.json"))
    compared: dict[tuple[str, str, str], list[float]] = {}
    for entry in table.comparisons:
        if entry.temperature > 0:
            ends = [entry.difference, entry.low, entry.high]
            compared[entry.dataset, entry.model, entry.other] = ends

    moved = {}
    for move in read_record(report / "lost_points.json", ExplainReport).movements:
        key = move.dataset, move.model, move.other
        if key in compared:
            moved[key] = [move.f1.mean, move.f1.low, move.f1.high]

    assert len(moved) == 2 * 4
    for key, ends in moved.items():
        assert ends == pytest.approx(compared[key], abs=1e-6), key


def test_f1_has_no_second_interval_among_the_lost_points(report: Path) -> None:
    section = (report / "index.html").read_text().partition('<h2 id="lost_points">')[2]
    [line, *_] = re.findall(r"</i>F1</th>(.*?)</tr>", section)
    assert re.fullmatch(r"(<td>[.\d]+</td>){4}", line)


def test_the_page_counts_the_failures_of_controls_by_kind(report: Path) -> None:
    table = F1Table.model_validate(read_json(report / "f1_table.json"))
    section = (report / "index.html").read_text().partition('<h2 id="controls">')[2]
    listed = re.findall(r"<li>(.*?)</li>", section.partition("</section>")[0])
    assert listed == [f"{name}: {counts}" for name, counts in table.failure_notes.items()]
    assert any("no search: 1 no_answer_tag" in line for line in listed)


def test_the_page_has_dev_f1_of_start_and_kept_step_side_by_side_and_the_gate_apart(
    report: Path,
) -> None:
    section = (report / "index.html").read_text().partition('<h2 id="rl">')[2]
    table = section.partition("</table>")[0]
    titles = re.findall(r'"col">(.*?)</th>', table)
    [line] = re.findall(r'"row">from sft</th>(.*?)</tr>', table, re.DOTALL)
    cells = re.findall(r"<td>([^ <]*)", line)
    assert dict(zip(titles[1:], cells, strict=True)) == {
        "start, dev F1": ".400",
        "step kept, dev F1": ".600",
        "step kept": "20",
        "steps": "20",
        "gate: one answer": ".600",
        "gate: best of several": ".700",
    }


def test_models_are_compared_wherever_both_answered_the_same_set(report: Path) -> None:
    table = F1Table.model_validate(read_json(report / "f1_table.json"))
    rows = {(row.model, row.dataset, row.temperature): row for row in table.rows}
    assert {(entry.model, entry.other) for entry in table.comparisons} == {
        ("sft", "base"),
        ("sft_rl", "sft"),
    }
    assert len(table.comparisons) == 2 * 5
    for entry in table.comparisons:
        of_model, of_other = (
            rows[name, entry.dataset, entry.temperature] for name in (entry.model, entry.other)
        )
        assert entry.difference == pytest.approx(of_model.f1 - of_other.f1, abs=1e-5)
        assert entry.low <= entry.difference <= entry.high
        searches = entry.tool_calls
        assert searches.difference == pytest.approx(
            of_model.mean_tool_calls - of_other.mean_tool_calls, abs=1e-5
        )
        assert searches.low <= searches.difference <= searches.high
        assert {kind: change.tool_calls.difference for kind, change in entry.types.items()} == {
            kind: score.mean_tool_calls - of_other.types[kind].mean_tool_calls
            for kind, score in of_model.types.items()
        }
        weighted = sum(change.n * change.difference for change in entry.types.values())
        assert weighted / entry.n == pytest.approx(entry.difference, abs=1e-4)
    by_run = [(entry.model, entry.run_name) for entry in table.comparisons_on("multihoprag")]
    assert by_run[:2] == [("sft", "multihoprag"), ("sft", "multihoprag, greedy")]
    assert "+1.500 [" in (report / "f1_table.md").read_text(), (
        "sft_rl searches more for deeper chains"
    )
    assert (
        "<strong>+3.000</strong><small>+3.000 to +3.000</small>"
        in (report / "index.html").read_text()
    )


def right_questions(folder: Path) -> set[str]:
    """The questions of musique whose one answer is the gold answer; other answers share no word with it."""
    rollouts = read_jsonl(folder / run_file("musique", "search", 0.7), Trajectory)
    return {rollout.question_id for rollout in rollouts if rollout.answer in rollout.golden_answers}


def test_a_comparison_names_the_questions_that_turned(finished: Path, report: Path) -> None:
    table = F1Table.model_validate(read_json(report / "f1_table.json"))
    [entry] = [
        entry for entry in table.comparisons if (entry.model, entry.run_name) == ("sft", "musique")
    ]
    gained = {name for change in entry.types.values() for name in change.gained}
    lost = {name for change in entry.types.values() for name in change.lost}

    folders = sources_in(finished).evaluate
    sft, base = right_questions(folders["sft"]), right_questions(folders["base"])
    assert (gained, lost) == (sft - base, base - sft)
    assert gained
    assert lost
    page = (report / "index.html").read_text()
    assert [name for name in gained if f"sft answers question {name}" not in page] == []


def test_a_comparison_with_a_model_that_was_not_evaluated_is_refused_by_name(
    results: Sources, tmp_path: Path
) -> None:
    config = ReportConfig(
        comparisons=(("sft", "base"), ("sft", "teecher")), draws=200, rollouts=0, search_index=False
    )
    with pytest.raises(
        UnknownNameError, match=r"report\.comparisons 'teecher'.*Valid names: base, rl, sft, sft_rl"
    ):
        write_report("tiny", results, config, 0, tmp_path)


def test_rollouts_that_do_not_fit_their_row_stop_the_report(
    results: Sources, tmp_path: Path
) -> None:
    path = results.evaluate["sft"] / run_file("musique", "search", 0.7)
    rollouts = list(read_jsonl(path, Trajectory))
    write_jsonl(path, rollouts[:-1])
    with pytest.raises(CheckFailedError, match="different questions"):
        write_report("tiny", results, CONFIG, 0, tmp_path)


@pytest.mark.parametrize("source", ["evaluate", "ifeval", "rl", "retrieval"])
def test_a_missing_source_is_named(source: str, results: Sources, tmp_path: Path) -> None:
    paths = {
        "evaluate": results.evaluate["sft"] / "rows.json",
        "ifeval": results.ifeval["sft"] / "scores.json",
        "rl": results.rl["sft"] / "train_log.jsonl",
        "retrieval": results.retrieval,
    }
    paths[source].unlink()
    with pytest.raises(ArtifactError, match=re.escape(str(paths[source]))):
        write_report("tiny", results, CONFIG, 0, tmp_path / "out")


def test_the_page_stands_alone_and_labels_generated_data(report: Path) -> None:
    source = (report / "index.html").read_text()
    page = Page(source)
    assert page.fetched == []
    assert not re.search(r"url\((?!#)|@import|<script[^>]+src", source)
    assert len(page.ids) == len(set(page.ids))
    within = {link.removeprefix("#") for link in page.links if "=" not in link}
    assert within <= set(page.ids)
    assert page.tags.count("svg") == 9
    assert page.text.count("generated data") == 1
    for dataset in ("multihoprag", "musique", "2wikimultihopqa", "hotpotqa"):
        titles = len(re.findall(rf"<(?:caption|th[^>]*)>{dataset}", source))
        labels = len(
            re.findall(
                rf'<(?:caption|th[^>]*)>{dataset}(?:, greedy)? <span class="tag">generated', source
            )
        )
        assert titles == labels > 0


@pytest.mark.slow
def test_texts_of_the_data_cannot_become_markup(results: Sources, tmp_path: Path) -> None:
    path = results.evaluate["sft"] / "rows.json"
    rows = json.loads(path.read_text())
    for row in rows["rows"]:
        row["constant"]["answer"] = "<b>&bold"
    write_json(path, rows)
    only = Sources(
        {"sft": path.parent}, {}, {}, results.retrieval, results.filter, results.questions
    )
    write_report("tiny", only, CONFIG.model_copy(update={"comparisons": ()}), 0, tmp_path)
    assert "&lt;b&gt;&amp;bold" in (tmp_path / "index.html").read_text()
    assert "b" not in Page((tmp_path / "index.html").read_text()).tags


def test_differences_carry_their_sign() -> None:
    assert [signed(value) for value in (0.0617, -0.03, 0.0, 1.0)] == [
        "+.062",
        "-.030",
        "+.000",
        "+1.000",
    ]


def test_a_report_of_an_earlier_stage_that_does_not_fit_names_file_and_field(
    results: Sources, tmp_path: Path
) -> None:
    assert results.filter is not None
    write_json(results.filter, {**read_json(results.filter), "rows": 0})
    with pytest.raises(ArtifactError, match=r"filter\.json, field 'rows'"):
        write_report(
            "tiny",
            results,
            ReportConfig(comparisons=(), draws=100, rollouts=0, search_index=False),
            0,
            tmp_path / "out",
        )


def test_p_values_are_corrected_for_all_tests_of_their_table(report: Path) -> None:
    table = F1Table.model_validate(read_json(report / "f1_table.json"))
    families = [table.comparisons, *(tuple(entry.types.values()) for entry in table.comparisons)]
    for family in families:
        changes = [*family, *(difference.tool_calls for difference in family)]
        corrected = [change.p_holm for change in changes]
        assert corrected == pytest.approx(holm([change.p_value for change in changes]), abs=1e-6)
    assert table.tests == 20

    first = table.comparisons_on("multihoprag")[0]
    assert first.p_holm is not None
    assert first.p_value < first.p_holm
    text = (report / "f1_table.md").read_text()
    page = (report / "index.html").read_text()
    assert f"[{signed(first.low)}, {signed(first.high)}] | {p_text(first.p_holm)} " in text
    assert f"<small>p {p_text(first.p_holm)}</small>" in page
    assert all(
        "corrected by Holm-Bonferroni for all 20 tests of this report" in words
        for words in (text, page)
    )


@pytest.fixture
def with_kept_start(results: Sources) -> Sources:
    """The finished profile, whose RL from the base model kept its start."""
    for folders in (results.evaluate, results.ifeval):
        for path in folders["base"].iterdir():
            (folders["rl"] / path.name).write_text(
                path.read_text().replace('"model": "base"', '"model": "rl"')
            )
    return results


@pytest.mark.slow
def test_a_model_that_kept_its_start_is_a_sentence_in_table_and_page(
    with_kept_start: Sources, tmp_path: Path
) -> None:
    pairs = (("sft", "base"), ("rl", "base"), ("sft_rl", "rl"))
    config = CONFIG.model_copy(update={"comparisons": pairs})
    written = write_report("tiny", with_kept_start, config, 0, tmp_path)
    assert written.table.kept_start == {"rl": "base"}

    text = (tmp_path / "f1_table.md").read_text()
    note = (
        "rl kept its start: it answers every question exactly as well as base. It is left out here."
    )
    assert "`rl` kept its start" in text
    assert not re.search(r"\| rl\b|\brl - |- rl\b", text)

    page = (tmp_path / "index.html").read_text()
    assert page.count(note) == 1
    assert not re.search(SCORE_OF_RL, page)
    assert not re.search(r"\brl - |- rl<|against rl ", page)

    models = {row["model"] for row in read_json(tmp_path / "f1_table.json")["rows"]}
    compared = {entry.other for entry in written.table.comparisons}
    assert "rl" in models & compared, "the JSON has all that was measured"


@pytest.mark.slow
def test_an_ifeval_score_that_differs_from_that_of_the_start_stays(
    with_kept_start: Sources, tmp_path: Path
) -> None:
    path = with_kept_start.ifeval["rl"] / "scores.json"
    write_json(path, {**read_json(path), "prompt_strict": 0.15})
    write_report(
        "tiny",
        with_kept_start,
        CONFIG.model_copy(update={"comparisons": (("rl", "base"),)}),
        0,
        tmp_path,
    )
    page = (tmp_path / "index.html").read_text()
    assert re.findall(SCORE_OF_RL, page) == [".150"]


@pytest.mark.parametrize(
    ("pairs", "kept"),
    [
        ((("base", "base"),), {}),
        ((("rl", "base"), ("base", "rl")), {"rl": "base"}),
        ((("rl", "base"), ("sft", "rl")), {"rl": "base"}),
    ],
)
def test_of_models_that_are_equal_one_stays(
    pairs: tuple[tuple[str, str], ...], kept: dict[str, str], with_kept_start: Sources
) -> None:
    table = build_table("tiny", with_kept_start.evaluate, pairs, 0, 100)
    assert table.kept_start == kept
    assert table.for_readers.models == [
        name for name in ("base", "sft", "rl", "sft_rl") if name not in kept
    ]
