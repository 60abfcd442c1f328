"""Table, figure and page of `deepsearch rl compare`; `tests/pipeline/test_smoke.py` runs the command itself."""

from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_record
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.evaluate.rl_comparison.comparison import (
    Comparison,
    Scores,
    Scoring,
    TrainedRun,
    mean_metrics,
)
from deepsearch_rl.evaluate.rl_comparison.page import mean_curve, write_comparison
from deepsearch_rl.evaluate.rl_comparison.tables import (
    comparison_table,
    mean_and_spread,
    shared_fields,
    short_names,
)
from tests.conftest import ROOT

START = Scores(dev_sampled=0.5, dev_greedy=0.6, dev_unanswerable=None, tool_calls=2.0)


def trained(dev_sampled: float, cpu_s: float, **steps: float) -> TrainedRun:
    scores = START.model_copy(update={"dev_sampled": dev_sampled})
    return TrainedRun(
        best_step=10, scores=scores, cpu_s=cpu_s, steps=steps, dev_f1={0: 0.5, 10: dev_sampled}
    )


def comparison(**runs: list[TrainedRun]) -> Comparison:
    return Comparison(
        profile="tiny",
        start="sft",
        checkpoint="models/tiny/sft",
        generated=True,
        questions={"dev: multihoprag": 150},
        samples=3,
        world_seed=None,
        start_scores=START,
        runs=runs,
    )


def test_a_setting_is_a_line_of_means_and_deviations_over_its_seeds() -> None:
    two = [trained(0.25, 8.0, kl=0.1), trained(0.75, 12.0, kl=0.3)]
    table = comparison_table(comparison(**{"rl.x=1": two, "rl.x=2": [trained(0.5, 9.0)]}))
    start, first, second = (dict(zip(table.header, line, strict=True)) for line in table.lines)

    assert start["setting"] == "sft"
    assert start["dev F1"] == "0.500"
    assert (first["setting"], first["runs"], second["runs"]) == ("x=1", "2", "1")
    # The deviation is that of a sample: sqrt(2 * 0.25 ** 2)
    assert first["dev F1"] == "0.500 ± 0.354"
    assert first["KL"] == "0.200 ± 0.141"
    assert (second["dev F1"], second["CPU s"]) == ("0.500", "9.000")
    assert second["KL"] == "", "an engine may log fewer metrics"
    assert "entropy" not in table.header, "no run has logged it"
    assert "other world F1" not in table.header, "no other world was asked for"


def test_a_setting_is_called_by_the_fields_that_not_all_have() -> None:
    long = f'rl.backend={{"engine":"{"x" * 60}"}}'
    settings = ["rl.steps.sft=9 rl.loss.algorithm=rloo", "rl.steps.sft=9", f"rl.steps.sft=9 {long}"]

    assert shared_fields(settings) == ["rl.steps.sft=9"]
    rloo, nothing, cut = short_names(settings).values()
    assert (rloo, nothing) == ("algorithm=rloo", "nothing else")
    assert cut.startswith('backend={"engine":"xxx')
    assert (len(cut), cut[-1]) == (40, "…")
    assert short_names(["rl.a.x=1", "rl.b.x=1"]) == {"rl.a.x=1": "rl.a.x=1", "rl.b.x=1": "rl.b.x=1"}
    assert short_names(["rl.kl=0"]) == {"rl.kl=0": "kl=0"}


def test_figures_from_ten_on_need_no_decimals() -> None:
    assert mean_and_spread([8.0, 12.0]) == "10 ± 3"
    assert mean_and_spread([10.0]) == "10"
    assert mean_and_spread([]) == ""


def test_a_metric_is_averaged_over_the_steps_that_have_it() -> None:
    assert mean_metrics([{"kl": 0.1, "loss": 1.0}, {"kl": None, "loss": 3.0}, {"loss": 5.0}]) == {
        "kl": 0.1,
        "loss": 3.0,
    }


def test_a_curve_is_averaged_at_the_steps_that_all_seeds_have() -> None:
    assert mean_curve([{0: 0.25, 10: 0.5, 20: 0.75}, {0: 0.25, 10: 0.75}]) == {0: 0.25, 10: 0.625}
    assert mean_curve([]) == {}


def test_the_page_holds_the_table_and_equal_results_give_an_equal_page(tmp_path: Path) -> None:
    compared = comparison(**{"rl.loss.algorithm=rloo": [trained(0.75, 9.0, kl=0.1)]})
    for name in ("one", "two"):
        write_comparison(compared, tmp_path / name)

    page = (tmp_path / "one/index.html").read_text()
    assert page == (tmp_path / "two/index.html").read_text()
    assert "algorithm=rloo" in page
    assert "<td>0.750</td>" in page
    assert page.count("<svg") == 2
    assert "https://" not in page.replace("http://www.w3.org", ""), "the page fetches nothing"
    assert read_record(tmp_path / "one/table.json", Comparison) == compared
    header, rule, start, rloo = (tmp_path / "one/table.md").read_text().splitlines()
    assert header.startswith("| setting | runs | dev F1 |")
    assert set(rule) == set("| -")
    assert start.startswith("| `sft` |  | 0.500 |")
    assert rloo.startswith("| `algorithm=rloo` | 1 | 0.750 |")


def test_questions_that_were_not_generated_have_no_other_world() -> None:
    with pytest.raises(ConfigError, match=r"profile gpu .*leave the option out"):
        Scoring(find_profile(ROOT, "gpu"), "multihoprag", 1, world_seed=7)
