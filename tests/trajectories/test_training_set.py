"""From a teacher's trajectories to training rows and the report."""

from pathlib import Path

import pytest

from deepsearch_rl.errors import ArtifactError, CheckFailedError, UnknownNameError
from deepsearch_rl.files import read_json, read_jsonl, write_jsonl
from deepsearch_rl.records import Question
from deepsearch_rl.trajectories.convert import SwiftRow
from deepsearch_rl.trajectories.training_set import FilterConfig, Paths, build_training_set
from stages.entry import Params
from tests.trajectories.test_filters import QUESTION, trajectory


@pytest.fixture
def paths(tmp_path: Path, model_folder: Path) -> Paths:
    write_jsonl(tmp_path / "questions.jsonl", [QUESTION])
    made = [trajectory(), trajectory(answer="Nobody"), trajectory(queries=())]
    named = [one.model_copy(update={"id": f"q#{number}", "sample": number}) for number, one in enumerate(made)]
    write_jsonl(tmp_path / "teacher.jsonl", named)
    rows, report = tmp_path / "sft" / "train.jsonl", tmp_path / "filter.json"
    return Paths(tmp_path / "teacher.jsonl", tmp_path / "questions.jsonl", model_folder, rows, report)


@pytest.fixture
def config(smoke: Params) -> FilterConfig:
    return smoke.section("filter", FilterConfig)


def test_the_report_counts_every_drop(paths: Paths, config: FilterConfig):
    assert build_training_set(config, paths) == len(list(read_jsonl(paths.rows, SwiftRow))) == 1
    report = read_json(paths.report)
    assert report["dropped"] == {
        "answered": 0, "success": 1, "searched": 1, "no_repeated_query": 0, "evidence_found": 0, "too_long": 0,
    }  # fmt: skip
    assert (report["trajectories"], report["rows"]) == (3, 1)


def test_rows_that_are_too_long_are_dropped_and_an_empty_training_set_is_refused(paths: Paths, config: FilterConfig):
    with pytest.raises(CheckFailedError, match="too_long"):
        build_training_set(config.model_copy(update={"max_tokens": 10}), paths)
    assert not paths.rows.exists()


def test_a_missing_input_names_the_file(paths: Paths, config: FilterConfig):
    paths.trajectories.unlink()
    with pytest.raises(ArtifactError, match=r"teacher\.jsonl"):
        build_training_set(config, paths)


def test_an_unknown_predicate_is_refused(config: FilterConfig):
    with pytest.raises(UnknownNameError, match="'success'"):
        FilterConfig(**(dict(config) | {"predicates": ("succes",)}))


def test_a_question_set_that_is_not_the_teachers_is_refused(paths: Paths, config: FilterConfig):
    write_jsonl(paths.questions, [Question(id="other", question="Who?", golden_answers=("Mary",))])
    with pytest.raises(ArtifactError, match="question"):
        build_training_set(config, paths)
