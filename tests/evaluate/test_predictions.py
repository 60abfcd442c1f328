"""`deepsearch score` and `deepsearch compare` on files, through the command itself."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.cli.score import report_comparison, report_scores
from deepsearch_rl.core.errors import ArtifactError, CheckFailedError, RecordError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import StopReason
from deepsearch_rl.evaluate.predictions import score_predictions
from tests.evaluate.conftest import make_rollout
from tests.evaluate.published import published

PAIRS = [
    ("Port Vale", ["port vale"]),
    ("the Port of Vale", ["Port Vale", "Vale of Port"]),
    ("yes it is", ["yes"]),
    ("Yes.", ["yes"]),
    ("", [""]),
    ("", ["x"]),
    ("anything", ["the"]),
    ("vale vale port", ["vale port port"]),
    ("Zoë's café", ["zoe cafe", "Zoë's café!"]),
    ("A.I.", ["AI"]),
    ("1,000", ["1000"]),
    ("no answer", ["noanswer"]),
    ("İstanbul ", ["i̇stanbul"]),
]


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(number: int, pred: str, golds: list[str], **more: object) -> dict[str, object]:
    return {"id": f"q{number}", "question": "?", "golden_answers": golds, "pred": pred, **more}


def test_the_json_means_equal_the_published_definitions(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "p.jsonl", [row(number, *pair) for number, pair in enumerate(PAIRS)]
    )
    result = CliRunner().invoke(app, ["score", str(path), "--json"])
    printed = json.loads(result.stdout)
    assert printed["n"] == len(PAIRS)
    expected = [published(*pair) for pair in PAIRS]
    for name, value in printed["metrics"].items():
        assert math.isclose(
            value, sum(scores[name] for scores in expected) / len(PAIRS), abs_tol=1e-12
        )
        low, high = printed["intervals"][name]
        assert low <= value <= high


def test_several_answers_to_a_question_count_once_with_their_mean(tmp_path: Path) -> None:
    rows = [
        row(1, "x", ["x"], sample=0),
        row(1, "y", ["x"], sample=1),
        row(2, "x", ["x"], question_type="bridge"),
    ]
    report = report_scores(
        score_predictions(write_rows(tmp_path / "p.jsonl", rows)), seed=0, draws=0
    )
    assert (report.n, report.rows, report.metrics["em"]) == (2, 3, 0.75)
    assert report.intervals is None
    assert {kind: group.n for kind, group in report.types.items()} == {"bridge": 1}


def test_trajectories_score_as_they_are_and_failed_ones_score_zero(tmp_path: Path) -> None:
    failed = make_rollout(1, gold="", stop=StopReason.DEADLINE)
    write_jsonl(tmp_path / "t.jsonl", [make_rollout(0, answer="Port Vale"), failed])
    assert report_scores(score_predictions(tmp_path / "t.jsonl"), 0, 0).metrics["em"] == 0.5


@pytest.mark.parametrize(
    ("second", "field"),
    [
        (row(1, "x", ["x"]), "id"),
        (row(1, "x", ["y"], sample=1), "golden_answers"),
        ({"id": "q2", "question": "?", "golden_answers": ["x"], "pred": ["x"]}, "pred"),
        ({"id": "q2", "question": "?", "golden_answers": [], "pred": "x"}, "golden_answers"),
        ({"id": "q2", "question": "?", "pred": "x"}, "golden_answers"),
    ],
)
def test_a_row_that_does_not_fit_is_named_by_file_line_and_field(
    tmp_path: Path, second: dict[str, object], field: str
) -> None:
    path = write_rows(tmp_path / "p.jsonl", [row(1, "x", ["x"]), second])
    with pytest.raises(RecordError) as caught:
        score_predictions(path)
    assert (caught.value.path, caught.value.line, caught.value.field) == (str(path), 2, field)


def test_golden_answers_that_are_no_list_are_named_with_what_to_write(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.jsonl", [{**row(1, "x", ["x"]), "golden_answers": "x"}])
    with pytest.raises(RecordError, match=r"'golden_answers': Input should be a valid array"):
        score_predictions(path)


def test_fields_that_other_systems_add_to_their_rows_are_ignored(tmp_path: Path) -> None:
    added = [
        {"metadata": None, "question_type": None},
        {"metadata": {"evidence_list": ["a fact"], "question_type": "bridge"}},
        {"stop_reason": "stop"},
        {"id": 7},
    ]
    rows = [{**row(number, "x", ["x"]), **more} for number, more in enumerate(added)]
    scored = score_predictions(write_rows(tmp_path / "p.jsonl", [rows[2], *rows[:2], rows[3]]))
    assert scored.rows == 4
    assert sorted(scored.scores.question_types) == ["", "", "", "bridge"]


def test_line_numbers_in_errors_count_blank_lines(tmp_path: Path) -> None:
    line = json.dumps(row(1, "x", ["x"]))
    (tmp_path / "p.jsonl").write_text(f"{line}\n\n\n{line}\n")
    with pytest.raises(RecordError) as caught:
        score_predictions(tmp_path / "p.jsonl")
    assert caught.value.line == 4


def test_a_trajectory_without_golden_answers_is_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "t.jsonl", [make_rollout(0).model_copy(update={"golden_answers": ()})])
    with pytest.raises(RecordError, match="golden_answers"):
        score_predictions(tmp_path / "t.jsonl")


def test_files_with_other_golden_answers_are_not_compared(tmp_path: Path) -> None:
    first = score_predictions(write_rows(tmp_path / "a.jsonl", [row(1, "x", ["x", "y"])]))
    second = score_predictions(write_rows(tmp_path / "b.jsonl", [row(1, "x", ["z"])]))
    with pytest.raises(CheckFailedError, match=r"other golden answers for 1 \(q1\)"):
        report_comparison(first, second, seed=0, draws=10)


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_a_missing_or_empty_file_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "p.jsonl").write_text(content)
    with pytest.raises(ArtifactError):
        score_predictions(tmp_path / "p.jsonl")


def test_a_folder_in_place_of_a_file_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"is a folder; name a file in it\."):
        score_predictions(tmp_path)


def test_the_comparison_is_paired_by_question_whatever_the_order_of_the_rows(
    tmp_path: Path,
) -> None:
    golds = [
        row(number, "", ["x"], question_type="odd" if number % 2 else "even")
        for number in range(60)
    ]
    better = [{**gold, "pred": "x" if number % 3 else "y"} for number, gold in enumerate(golds)]
    worse = [{**gold, "pred": "x" if number % 3 == 1 else "y"} for number, gold in enumerate(golds)]
    first = score_predictions(write_rows(tmp_path / "a.jsonl", better))
    second = score_predictions(write_rows(tmp_path / "b.jsonl", worse[::-1]))
    report = report_comparison(first, second, seed=0, draws=500)
    difference = report.differences["f1"]
    assert difference.mean == pytest.approx(1 / 3)
    assert 0 < difference.low < difference.mean < difference.high
    assert difference.p_value == pytest.approx(1 / 501)
    assert {kind: group.n for kind, group in report.types.items()} == {"even": 30, "odd": 30}
    assert report_comparison(first, first, seed=0, draws=50).differences["em"].p_value == 1.0


def test_files_over_different_questions_are_not_compared(tmp_path: Path) -> None:
    first = score_predictions(
        write_rows(tmp_path / "a.jsonl", [row(1, "x", ["x"]), row(2, "x", ["x"])])
    )
    second = score_predictions(
        write_rows(tmp_path / "b.jsonl", [row(1, "x", ["x"]), row(3, "x", ["x"])])
    )
    with pytest.raises(CheckFailedError, match=r"q2.*q3"):
        report_comparison(first, second, seed=0, draws=10)


def test_both_commands_print_tables(tmp_path: Path) -> None:
    pairs = [*PAIRS, *[("x", ["see [/b] x"])] * 9]
    path = str(
        write_rows(tmp_path / "p.jsonl", [row(number, *pair) for number, pair in enumerate(pairs)])
    )
    assert "see [/b] x" in CliRunner().invoke(app, ["score", path]).stdout
    assert "+0.000" in CliRunner().invoke(app, ["compare", path, path, "--draws", "50"]).stdout
