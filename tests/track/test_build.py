from pathlib import Path

import pytest

from deepsearch_rl.core.errors import RecordError
from deepsearch_rl.core.files import parse_record, read_jsonl, read_record, sha256_file
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.tables import F1Table
from deepsearch_rl.track.build_bundle import Results, build_bundle
from deepsearch_rl.track.bundle import (
    FILES,
    PREDICTIONS,
    ROLLOUTS,
    PredictionRow,
    TracedRollout,
    read_bundle,
    row_scores,
)
from deepsearch_rl.track.run_names import flatten
from deepsearch_rl.train.curves import TrainingStep
from tests.track.conftest import CONFIG, MODELS, PROVENANCE, QUESTIONS, SEED


def read_predictions(folder: Path, model: str) -> list[PredictionRow]:
    return [row for row in read_jsonl(folder / PREDICTIONS, PredictionRow) if row.model == model]


def test_a_bundle_holds_what_its_report_says(results: Results, tmp_path: Path) -> None:
    report = build_bundle(results, PROVENANCE, CONFIG, SEED, tmp_path / "bundle")
    bundle = read_bundle(tmp_path / "bundle")
    assert (report.digest, report.models) == (bundle.digest, MODELS)
    assert (
        report.predictions
        == sum(len(read_predictions(tmp_path / "bundle", model)) for model in MODELS)
        == 3 * 2 * 5
    )
    assert report.traces == 3 * 2 * 3
    # IFEval, and two points of its curve
    assert report.metrics["sft"] == report.metrics["base"] + 1 + 2
    assert "sk-hidden" not in (tmp_path / "bundle" / "bundle.json").read_text()


def test_what_the_search_for_a_prompt_found_goes_with_the_report(
    results: Results, tmp_path: Path
) -> None:
    (tmp_path / "prompts" / "sft").mkdir(parents=True)
    (tmp_path / "prompts" / "sft" / "candidates.json").write_text("[]")
    results = results._replace(prompts=[tmp_path / "prompts" / "sft"])
    build_bundle(results, PROVENANCE, CONFIG, SEED, tmp_path / "bundle")
    assert (tmp_path / "bundle" / FILES / "prompts-sft-candidates.json").read_text() == "[]"


def test_equal_results_make_equal_bundles_and_another_answer_another_digest(
    results: Results, tmp_path: Path
) -> None:
    first = build_bundle(results, PROVENANCE, CONFIG, SEED, tmp_path / "first")
    elsewhere = PROVENANCE.model_copy(update={"tags": {"git.commit": "def"}})
    assert build_bundle(results, elsewhere, CONFIG, SEED, tmp_path / "second") == first
    for name in (PREDICTIONS, ROLLOUTS):
        assert sha256_file(tmp_path / "first" / name) == sha256_file(tmp_path / "second" / name)
    path = (
        results.evaluations["sft"]
        / read_record(results.reports / "f1_table.json", F1Table).rows[-1].rollouts_file
    )
    path.write_text(path.read_text().replace('"answer":"Port Vale"', '"answer":"Vale"'))
    assert (
        build_bundle(results, PROVENANCE, CONFIG, SEED, tmp_path / "third").digest != first.digest
    )


def test_every_model_shows_the_same_rollouts_and_more_of_them_keep_those(
    results: Results, tmp_path: Path
) -> None:
    def shown(share: float) -> dict[str, set[str]]:
        folder = tmp_path / str(share)
        build_bundle(results, PROVENANCE, CONFIG.model_copy(update={"traces": share}), SEED, folder)
        found = list(read_jsonl(folder / ROLLOUTS, TracedRollout))
        return {
            model: {one.trajectory.id for one in found if one.model == model} for model in MODELS
        }

    few, many = shown(0.1), shown(0.5)
    assert few["base"] == few["sft"] == few["rl"]
    assert few["sft"] < many["sft"]
    assert [len(few["sft"]), len(many["sft"])] == [2, 6]  # rounded up, and at least one
    assert shown(0.0) == {model: set() for model in MODELS}


def test_all_predictions_are_kept_where_no_number_is_given(
    results: Results, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"predictions": None})
    build_bundle(results, PROVENANCE, config, SEED, tmp_path / "bundle")
    rows = read_predictions(tmp_path / "bundle", "sft")
    assert len(rows) == 2 * QUESTIONS
    failed = [row for row in rows if row.stop_reason != "answered"]
    assert [(row.rollout, row.f1, row.answer) for row in failed[:2]] == [
        ("q05#0", 0.0, ""),
        ("q11#0", 0.0, ""),
    ]


def test_variants_and_greedy_answers_have_names_of_their_own(results: Results) -> None:
    main, greedy = (
        row
        for row in read_record(results.reports / "f1_table.json", F1Table).rows
        if row.model == "sft"
    )
    variant = main.model_copy(update={"variant": "top 5, short"})
    names = [name for row in (main, greedy, variant) for name in row_scores(row)]
    assert {"f1/multihoprag", "f1_greedy/multihoprag", "f1/multihoprag.top_5__short"} <= set(names)
    assert {
        "pass_at_1/multihoprag",
        "pass_at_1_greedy/multihoprag",
        "pass_at_1/multihoprag.top_5__short",
    } <= set(names)
    assert len(set(names)) == len(names)


def test_the_in_domain_f1_comes_first_and_the_reports_own_figures_are_the_best_models(
    results: Results, tmp_path: Path
) -> None:
    build_bundle(results, PROVENANCE, CONFIG, SEED, tmp_path / "bundle")
    bundle = read_bundle(tmp_path / "bundle")
    others = [
        row.model_copy(update={"dataset": "2wikimultihopqa", "f1": 0.75})
        for row in bundle.table.rows
    ]
    table = bundle.table.model_copy(update={"rows": (*others, *bundle.table.rows)})
    both = bundle.model_copy(update={"table": table})
    assert both.metrics("base")[0].key == "f1/multihoprag"
    f1 = {metric.key: round(metric.value, 3) for metric in both.headline()}
    assert f1 == {
        "f1/multihoprag": 0.583,
        "f1/2wikimultihopqa": 0.75,
        "base/f1": 0.25,
        "rl/f1": 0.417,
        "sft/f1": 0.583,
    }


def test_lost_points_of_the_in_domain_set_and_f1_add_up_to_one(
    results: Results, tmp_path: Path
) -> None:
    build_bundle(results, PROVENANCE, CONFIG, SEED, tmp_path / "bundle")
    bundle = read_bundle(tmp_path / "bundle")
    for model in MODELS:
        metrics = {metric.key: metric.value for metric in bundle.metrics(model)}
        causes = [metrics[f"lost/{cause}"] for cause in Cause]
        assert sum(causes) == pytest.approx(1 - metrics["f1/multihoprag"])
        assert metrics["lost/not_used"] > 0


def test_a_model_without_a_training_log_has_no_curve(results: Results, tmp_path: Path) -> None:
    build_bundle(results._replace(train_logs={}), PROVENANCE, CONFIG, SEED, tmp_path / "bundle")
    bundle = read_bundle(tmp_path / "bundle")
    assert not [
        metric
        for model in MODELS
        for metric in bundle.metrics(model)
        if metric.key.startswith("train/")
    ]


def test_a_training_log_line_that_is_no_number_names_line_and_field() -> None:
    with pytest.raises(RecordError, match=r"train_log\.jsonl, line 3: field 'loss'"):
        parse_record(TrainingStep, b'{"step": 1, "loss": "low"}', "train_log.jsonl", 3)


def test_params_are_flattened_in_order_and_secrets_left_out() -> None:
    params = {
        "b": [1, 2],
        "a": {"d": None, "c": True},
        "max_tokens": 96,
        "endpoint": {"OPENAI_API_KEY": "sk-hidden"},
    }
    assert list(flatten(params)) == [
        ("a.c", "True"),
        ("a.d", "None"),
        ("b", "[1, 2]"),
        ("max_tokens", "96"),
    ]


def test_params_hold_no_user_and_password_of_an_address_and_no_secret_in_a_list() -> None:
    params = {
        "plain": "https://user:hid%2Fden@api.example:8000/v1",
        "slash": "see https://user:hid/d@en@api.example/v1 there",
        "servers": [{"url": "http://user:hidden@h/v1", "api_key": "sk-hidden"}, "http://h/v1"],
        "mail": "somebody@example.com",
    }
    assert dict(flatten(params)) == {
        "plain": "https://***@api.example:8000/v1",
        "slash": "see https://***@api.example/v1 there",
        "servers": "[{'url': 'http://***@h/v1'}, 'http://h/v1']",
        "mail": "somebody@example.com",
    }


def test_a_row_of_a_table_artifact_holds_texts_and_numbers_alone(
    results: Results, tmp_path: Path
) -> None:
    build_bundle(results, PROVENANCE, CONFIG, SEED, tmp_path / "bundle")
    rows = [row.table_row() for row in read_predictions(tmp_path / "bundle", "base")]
    assert len(rows) == 10
    assert {row["golden_answers"] for row in rows} == {"Port Vale | Vale"}
    assert all(list(row) == list(PredictionRow.model_fields) for row in rows)
