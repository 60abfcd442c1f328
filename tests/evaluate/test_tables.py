"""Names of rows, and what the page makes of variants and of models that answered some sets only."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.core.files import read_record, write_json
from deepsearch_rl.evaluate.f1_row import ControlScore, F1TableRow, ModelEvaluation
from deepsearch_rl.evaluate.report.page import bin_width
from deepsearch_rl.evaluate.report.plots import read_rl_run, rl_figure
from deepsearch_rl.evaluate.report.write_report import ReportConfig, Sources, write_report
from deepsearch_rl.evaluate.table_files import flat_rows, markdown, score_text, write_table
from deepsearch_rl.evaluate.tables import F1Table
from deepsearch_rl.train.curves import TrainingStep
from tests.evaluate.conftest import sources_in

CONFIG = ReportConfig(comparisons=(), draws=100, rollouts=5, search_index=False)


@pytest.fixture
def own(finished: Path) -> F1TableRow:
    """A main figure."""
    evaluation = read_record(sources_in(finished).evaluate["sft"] / "rows.json", ModelEvaluation)
    return next(row for row in evaluation.rows if not row.kind)


def test_a_run_is_named_by_its_set_and_what_sets_it_apart(own: F1TableRow) -> None:
    greedy = own.model_copy(update={"temperature": 0.0})
    variant = own.model_copy(update={"variant": "top5"})
    assert [row.run_name for row in (own, greedy, variant)] == [
        own.dataset,
        f"{own.dataset}, greedy",
        f"{own.dataset}, top5",
    ]


def test_a_variant_says_all_that_it_changes_and_nothing_else(own: F1TableRow) -> None:
    changes = {
        "prompt": "short",
        "top_k": 5,
        "chunk_size": 400,
        "corpus": "big",
        "n": 7,
        "samples": own.samples + 1,
    }
    changes_text = "prompt “short”, top 5, 400-token chunks, corpus big, 7 questions, "
    assert own.model_copy(update=changes).changes_from(own).startswith(changes_text)
    assert own.model_copy(update={"top_k": 5}).changes_from(own) == "top 5"
    assert own.changes_from(own) == "the same setting"
    assert own.model_copy(update={"chunk_size": 0}).changes_from(own) == "passages as they come"


def test_the_settings_below_the_table_are_those_of_each_set(own: F1TableRow) -> None:
    in_domain = own.model_copy(update={"dataset": "multihoprag"})
    other = own.model_copy(
        update={"dataset": "2wikimultihopqa", "top_k": 9, "prompt": "other", "chunk_size": 0}
    )
    tables = [
        F1Table(profile="tiny", generated=True, rows=rows, comparisons=())
        for rows in ((other, in_domain), (other,))
    ]
    first, alone = (markdown(table) for table in tables)
    size = f"of at most {own.chunk_size} tokens by {own.retriever}"
    assert f"multihoprag: prompt `{own.prompt}`, top-{own.top_k} passages {size};" in first
    others = f"prompt `other`, top-9 passages as they come by {own.retriever}."
    assert f"2wikimultihopqa: {others}" in first
    assert f"Temperature: 0.7; {others}" in alone


@pytest.mark.parametrize(
    ("omitting", "text"),
    [
        ((), "Temperature: 0.7; "),
        (("api", "sft"), "Temperature: the provider's own; "),
        (("api",), "Temperature: 0.7 (sft); the provider's own (api); "),
    ],
    ids=str,
)
def test_the_temperature_below_the_table_is_the_one_that_was_sent(
    own: F1TableRow, omitting: tuple[str, ...], text: str
) -> None:
    rows = tuple(
        own.model_copy(update={"model": model, "temperature_sent": model not in omitting})
        for model in ("api", "sft")
    )
    table = F1Table(profile="tiny", generated=True, rows=rows, comparisons=())
    assert text in markdown(table)
    assert [line["temperature"] for line in flat_rows(rows)] == [
        None if row.model in omitting else 0.7 for row in rows
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"retriever": "hybrid_learned"}, "retriever hybrid_learned"),
        ({"retriever": "bm25+rerank"}, "retriever bm25+rerank"),
        ({"retriever": "online"}, "retriever online"),
        ({"retriever": ""}, "retriever not known"),
        ({"chunk_size": 256}, "256-token chunks"),
        ({"chunk_size": 0}, "passages as they come"),
        ({"top_k": 5}, "top 5"),
        ({"prompt": "other"}, "prompt “other”"),
        ({"corpus": "wiki"}, "corpus wiki"),
        ({"retriever": "dense", "top_k": 5}, "top 5, retriever dense"),
    ],
    ids=str,
)
def test_a_main_figure_of_another_setting_than_its_neighbours_is_marked(
    own: F1TableRow, change: dict[str, object], text: str
) -> None:
    other = own.model_copy(update={"model": "zz", **change})
    same = own.model_copy(update={"model": "same"})
    table = F1Table(profile="tiny", generated=True, rows=(own, same, other), comparisons=())
    assert table.setting_notes == {f"zz, {own.dataset}": text}
    assert (
        f"Under another setting than the first row of their set: zz, {own.dataset} ({text})."
        in (markdown(table))
    )
    assert "another setting" not in markdown(table.model_copy(update={"rows": (own, same)}))


def test_the_table_of_variants_says_how_passages_were_found(own: F1TableRow) -> None:
    variant = own.model_copy(update={"variant": "learned", "retriever": "hybrid_learned"})
    table = F1Table(profile="tiny", generated=True, rows=(own, variant), comparisons=())
    lines = [line.split("|") for line in markdown(table).splitlines() if "|" in line]
    [header] = [[cell.strip() for cell in line] for line in lines if " variant " in line]
    [row] = [[cell.strip() for cell in line] for line in lines if " learned " in line]
    assert row[header.index("retriever")] == "hybrid_learned"


def test_figures_of_other_questions_than_their_row_say_of_how_many(own: F1TableRow) -> None:
    variant = own.model_copy(update={"variant": "few", "n": own.n - 1, "controls": {}})
    table = F1Table(profile="tiny", generated=True, rows=(own, variant), comparisons=())
    text = markdown(table)
    control = own.controls["no_search"]
    assert control.n < own.n
    assert f"| {score_text(control.f1)} ({control.n}) |" in text
    assert f"| {score_text(own.f1)} ({own.n}) " in text


def test_the_start_of_rl_has_the_dev_f1_of_step_0(results: Sources) -> None:
    run = read_rl_run(results.rl["sft"])
    assert run.start_dev_f1 == 0.4
    assert run._replace(steps=run.steps[1:]).start_dev_f1 is None


def test_a_row_whose_model_was_trained_with_another_text_is_marked_and_explained(
    own: F1TableRow,
) -> None:
    same = own.model_copy(update={"trained_with_other": ()})
    other = own.model_copy(update={"model": "old", "trained_with_other": ("prompt", "tool")})
    variant = own.model_copy(
        update={"variant": "short", "prompt": "short", "trained_with_other": ("prompt",)}
    )
    text = markdown(
        F1Table(profile="tiny", generated=True, rows=(same, other, variant), comparisons=())
    )
    names = [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("|")]
    assert {"sft", "old †", "sft †"} <= set(names)
    assert "† Not what the model was trained with: " in text
    assert "old was trained with another system prompt and tool schema" in text
    assert "sft, short was trained with another system prompt" in text

    assert "†" not in markdown(
        F1Table(profile="tiny", generated=True, rows=(same, own), comparisons=())
    )
    flat = [row["trained_with_other"] for row in flat_rows((own, same, other))]
    assert flat == ["unknown", "none", "prompt;tool"]


def test_rollouts_that_were_asked_for_again_are_told_in_every_form(own: F1TableRow) -> None:
    again = own.model_copy(
        update={"model": "kimi", "asked_again": 3, "failures": {"model_error": 1}}
    )
    table = F1Table(profile="tiny", generated=True, rows=(own, again), comparisons=())
    note = f"Rollouts that were asked for again, because a server had failed them: kimi, {own.run_name}: 3."
    assert note in markdown(table)
    assert "asked for again" not in markdown(table.model_copy(update={"rows": (own,)}))
    assert flat_rows((again,))[0]["failures"] == "asked_again=3;model_error=1"
    assert again.model_dump()["asked_again"] == 3
    assert "asked_again" not in own.model_dump()
    assert F1TableRow.model_validate(own.model_dump()) == own


def test_controls_tell_what_was_asked_for_again_too(own: F1TableRow) -> None:
    fields = {
        name: getattr(own, name)
        for name in ("n", "em", "f1", "f1_low", "f1_high", "temperature", "samples")
    }
    control = ControlScore(**fields, searched_f1=own.f1, failures={})
    again = own.model_copy(
        update={
            "controls": {
                "no_search": control,
                "gold_passage": control.model_copy(update={"asked_again": 2}),
            }
        }
    )
    note = f"because a server had failed them: {own.model}, {own.run_name}, gold passages: 2."
    assert note in markdown(F1Table(profile="tiny", generated=True, rows=(again,), comparisons=()))
    assert "asked_again" not in control.model_dump()


def _with_failures(
    own: F1TableRow, failures: dict[str, int], of_control: dict[str, int]
) -> F1TableRow:
    """Return the row with these failures, and as many of its control without search."""
    control = own.controls["no_search"].model_copy(update={"failures": of_control})
    return own.model_copy(update={"failures": failures, "controls": {"no_search": control}})


@pytest.mark.parametrize(
    ("failures", "of_control", "note"),
    [
        ({"deadline": 2}, {}, "2 deadline"),
        (
            {},
            {"no_answer_tag": 1, "token_budget": 9},
            "none; no search: 1 no_answer_tag, 9 token_budget",
        ),
        ({"deadline": 2}, {"token_budget": 9}, "2 deadline; no search: 9 token_budget"),
    ],
    ids=["with search", "under a control", "both"],
)
def test_failures_are_counted_by_kind_below_the_table(
    own: F1TableRow, failures: dict[str, int], of_control: dict[str, int], note: str
) -> None:
    row = _with_failures(own, failures, of_control)
    table = F1Table(profile="tiny", generated=True, rows=(row,), comparisons=())
    assert table.failure_notes == {f"{row.model}, {row.run_name}": note}
    assert f"\n- {row.model}, {row.run_name}: {note}\n" in markdown(table)


def test_a_table_without_failures_lists_none(own: F1TableRow) -> None:
    row = _with_failures(own, {}, {})
    table = F1Table(profile="tiny", generated=True, rows=(row,), comparisons=())
    assert "ended without an answer" not in markdown(table)


def test_the_csv_has_the_failures_of_every_control(own: F1TableRow, tmp_path: Path) -> None:
    row = _with_failures(own, {}, {"token_budget": 9, "no_answer_tag": 1})
    table = F1Table(profile="tiny", generated=True, rows=(row,), comparisons=())
    write_table(table, (), tmp_path)
    [line] = csv.DictReader((tmp_path / "f1_table.csv").open())
    assert line["no_search_failures"] == "no_answer_tag=1;token_budget=9"


def test_random_passages_are_a_column_where_that_control_ran(
    own: F1TableRow, tmp_path: Path
) -> None:
    control = next(iter(own.controls.values()))
    controls = {"no_search": control, "random_passage": control, "gold_passage": control}
    with_random = own.model_copy(update={"controls": controls})
    for row, is_there in ((own, False), (with_random, True)):
        table = F1Table(profile="tiny", generated=True, rows=(row,), comparisons=())
        folder = tmp_path / str(is_there)
        folder.mkdir()
        write_table(table, (), folder)
        header = (folder / "f1_table.csv").read_text().splitlines()[0]
        assert header.endswith(",random_passage_f1,random_passage_failures") is is_there
        assert ("random passages" in markdown(table)) is is_there


def test_rows_are_read_the_in_domain_set_first_and_models_in_training_order(
    own: F1TableRow,
) -> None:
    keys = [
        ("musique", "base"),
        ("multihoprag", "sft_rl"),
        ("multihoprag", "base"),
        ("multihoprag", "kimi"),
    ]
    rows = tuple(
        own.model_copy(update={"dataset": dataset, "model": model}) for dataset, model in keys
    )
    table = F1Table(profile="tiny", generated=True, rows=rows, comparisons=())
    lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1, "padded, so that it reads as plain text"
    assert [line.split("|")[2].strip() for line in lines[2:6]] == [
        "base",
        "sft_rl",
        "kimi",
        "*constant answer*",
    ]
    ordered = [(row.dataset, row.model) for row in table.reading_order]
    assert ordered == [
        ("multihoprag", "base"),
        ("multihoprag", "sft_rl"),
        ("multihoprag", "kimi"),
        ("musique", "base"),
    ]
    assert [row.model for row in table.main_rows("musique")] == ["base"]


@pytest.mark.parametrize(
    ("low", "high", "step", "width"),
    [
        (1, 8, 1, 1),
        (1, 9, 1, 2),
        (0, 0, 1, 1),
        (200, 800, 100, 100),
        (0, 31000, 100, 5000),
        (0, 16, 1, 5),
    ],
)
def test_values_are_drawn_in_eight_bins_at_most(low: int, high: int, step: int, width: int) -> None:
    assert bin_width(low, high, step) == width


def _with_variant(sources: Sources, own: F1TableRow) -> None:
    """Give ``sft`` a row with five passages per search."""
    folder = sources.evaluate["sft"]
    evaluation = read_record(folder / "rows.json", ModelEvaluation)
    variant = own.model_copy(update={"variant": "top5", "top_k": 5, "controls": {}})
    shutil.copy(folder / own.rollouts_file, folder / variant.rollouts_file)
    rows = sorted((*evaluation.rows, variant), key=lambda row: row.sort_key)
    write_json(
        folder / "rows.json",
        evaluation.model_copy(update={"rows": tuple(rows)}).model_dump(mode="json"),
    )


@pytest.mark.slow
def test_a_variant_has_a_line_in_table_plot_and_browser_and_leaves_the_main_figures_alone(
    results: Sources, own: F1TableRow, tmp_path: Path
) -> None:
    _with_variant(results, own)
    report = write_report("tiny", results, CONFIG, 0, tmp_path)
    page = (tmp_path / "index.html").read_text()
    [headline] = re.findall(r"<dl class=headline>.*?</dl>", page, re.DOTALL)
    assert re.findall(r"</i>(\w+)</dt>", headline) == ["base", "sft", "rl", "sft_rl"]
    assert "top5<small>top 5</small>" in page
    assert "sft, top5" in (tmp_path / "plots" / "f1.svg").read_text()
    assert f'href="#model=sft&amp;dataset={own.dataset}%2C+top5&amp;outcome=correct"' in page
    assert f"{own.dataset}, top5" in {rollout.dataset for rollout in report.rollouts}


@pytest.mark.slow
def test_a_model_that_answered_one_set_alone_leaves_cells_empty_and_a_profile_without_training_its_sections_out(
    results: Sources, tmp_path: Path
) -> None:
    folder = results.evaluate["rl"]
    evaluation = read_record(folder / "rows.json", ModelEvaluation)
    rows = tuple(row for row in evaluation.rows if row.dataset == "musique")
    write_json(
        folder / "rows.json", evaluation.model_copy(update={"rows": rows}).model_dump(mode="json")
    )
    models = {name: results.evaluate[name] for name in ("base", "rl")}
    only = Sources(models, {}, {}, results.retrieval, None, results.questions)
    write_report("api", only, CONFIG, 0, tmp_path)
    page = (tmp_path / "index.html").read_text()
    main_tables = page[page.index('<h2 id="f1"') : page.index("<figure")].split("<caption>")[1:]
    assert [
        "musique" in text for text in main_tables if '<th scope="row">rl</th><td>.' in text
    ] == [True]
    assert not {"rl", "ifeval", "filter"} & set(re.findall(r'<h2 id="(\w+)"', page))


def test_the_learning_curve_has_the_intervals_whose_errors_are_logged(results: Sources) -> None:
    run = read_rl_run(results.rl["sft"])
    reward, f1, _ = rl_figure({"sft": run}).axes
    [band] = reward.collections
    assert set(np.asarray(band.get_paths()[0].vertices)[:, 0]) == set(range(1, 21))
    bars = [points for line in f1.lines if len(points := np.asarray(line.get_xydata())) == 2]
    assert [bar[0, 0] for bar in bars] == [0, 5, 10, 15, 20]
    assert bars[-1][:, 1] == pytest.approx([0.6 - 1.96 * 0.04, 0.6 + 1.96 * 0.04])
    plain = [
        {name: value for name, value in line.model_dump().items() if "_se" not in name}
        for line in run.steps
    ]
    without = run._replace(steps=tuple(map(TrainingStep.model_validate, plain)))
    reward, f1, _ = rl_figure({"sft": without}).axes
    assert not reward.collections
    assert [len(np.asarray(line.get_xydata())) for line in f1.lines] == [20, 1, 1, 1, 1, 1]
