import json
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import (
    Evidence,
    Message,
    Question,
    QuestionMetadata,
    Retrieval,
    StopReason,
    TokenUsage,
    Trajectory,
)
from deepsearch_rl.evaluate.trajectory_statistics import Tally, read_statistics
from tests.train.test_swift_rows import ONE_CALL, conversation

FACT = "The mayor of Northgate  is\nKaspar Granger."
"""As in the passage of the test conversations, but for white space."""


def usage(*calls: tuple[int, int]) -> tuple[TokenUsage, ...]:
    return tuple(
        TokenUsage(prompt_tokens=prompt, completion_tokens=completion)
        for prompt, completion in calls
    )


def rollout(number: int, trajectory: Trajectory, **changes: object) -> Trajectory:
    return trajectory.model_copy(
        update={"id": f"q{number}#0", "question_id": f"q{number}", **changes}
    )


RIGHT = rollout(
    1,
    conversation(("", ["mayor"]), ("", ["the mayor!"])),
    answer="Kaspar Granger",
    usage=usage((100, 10), (200, 20), (300, 7)),
    retrievals=(
        Retrieval(query="mayor", chunk_ids=("a",)),
        Retrieval(query="The mayor!", chunk_ids=("a",)),
    ),
)
THOUGHT = Message(role="assistant", content="<answer>Stoke</answer>", reasoning="Stoke, no")
WRONG = rollout(
    2,
    ONE_CALL,
    answer="Stoke",
    messages=(*ONE_CALL.messages[:-1], THOUGHT),
    usage=usage((100, 10), (200, 5)),
)
LATE = rollout(3, ONE_CALL, stop_reason=StopReason.DEADLINE)
QUESTIONS = [
    Question(
        id=f"q{number}",
        question="?",
        golden_answers=("x",),
        metadata=QuestionMetadata(evidence_list=tuple(Evidence(fact=fact) for fact in facts)),
    )
    for number, facts in ((1, [FACT]), (2, [FACT, "never shown"]), (3, []))
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    write_jsonl(tmp_path / "t.jsonl", [RIGHT, WRONG, LATE])
    write_jsonl(tmp_path / "q.jsonl", QUESTIONS)
    return tmp_path / "t.jsonl", tmp_path / "q.jsonl"


def test_figures_are_means_and_deviations_of_all_of_successes_and_of_failures(
    files: tuple[Path, Path],
) -> None:
    found = read_statistics(*files)
    means = {
        name: {figure: one.mean for figure, one in group.figures.items()}
        for name, group in found.groups.items()
    }
    assert {name: group.rollouts for name, group in found.groups.items()} == {
        "all": 3,
        "success": 1,
        "failure": 2,
    }
    assert means["success"]["rounds"] == 3
    assert means["failure"]["rounds"] == 2
    assert means["all"]["em"] == pytest.approx(1 / 3)
    assert (means["success"]["last_prompt_tokens"], means["success"]["last_completion_tokens"]) == (
        300,
        7,
    )
    assert (means["success"]["prompt_tokens"], means["success"]["completion_tokens"]) == (600, 37)
    assert found.groups["all"].figures["prompt_tokens"].std == 150  # of 600 and 300
    assert found.groups["all"].rounds == {2: 2, 3: 1}
    assert found.groups["all"].tool_calls == {1: 2, 2: 1}
    # 205 and 307 in the last turn; the third was not counted
    assert found.groups["all"].tokens == {200: 1, 300: 1}
    assert found.outcomes == {"correct": 1, "deadline": 1, "wrong": 1}


def test_a_rollout_without_counted_tokens_is_left_out_of_their_mean_alone(
    files: tuple[Path, Path],
) -> None:
    figures = read_statistics(*files).groups["failure"].figures
    assert (figures["prompt_tokens"].n, figures["rounds"].n) == (1, 2)


def test_repeated_queries_are_counted_whatever_their_case_and_punctuation(
    files: tuple[Path, Path],
) -> None:
    assert read_statistics(*files).groups["success"].figures["repeated_queries"].mean == 1


def test_evidence_counts_where_it_is_known_and_answers_without_it_are_told(
    files: tuple[Path, Path],
) -> None:
    groups = read_statistics(*files).groups
    assert groups["success"].figures["evidence_shown"].mean == 1
    assert groups["failure"].figures["evidence_shown"].mean == 0.5
    # The third question has no evidence
    assert groups["failure"].figures["evidence_shown"].n == 1
    assert groups["success"].figures["answered_without_evidence"].mean == 0
    assert groups["failure"].figures["answered_without_evidence"].mean == 1
    assert "evidence_shown" not in read_statistics(files[0], None).groups["all"].figures


def test_every_figure_is_what_one_computes_by_hand(files: tuple[Path, Path]) -> None:
    figures = read_statistics(*files).groups["all"].figures
    by_hand = {  # of RIGHT, WRONG and LATE, in this order
        "em": (1, 0, 0),
        "f1": (1, 0, 0),
        "acc": (1, 0, 0),
        "precision": (1, 0, 0),
        "recall": (1, 0, 0),
        "rounds": (3, 2, 2),
        "tool_calls": (2, 1, 1),
        "executed_searches": (2, 0, 0),
        "repeated_queries": (1, 0, 0),
        "reasoning_characters": (0, 9, 0),
        "last_prompt_tokens": (300, 200),
        "last_completion_tokens": (7, 5),
        "prompt_tokens": (600, 300),
        "completion_tokens": (37, 15),
        "evidence_shown": (1, 0.5),
        "answered_without_evidence": (0, 1),
    }
    assert set(figures) == set(by_hand)
    for name, values in by_hand.items():
        spread = figures[name]
        assert (spread.n, spread.mean) == (len(values), pytest.approx(fmean(values))), name
        assert spread.std == pytest.approx(pstdev(values)), name


def test_reasoning_counts_wherever_the_server_put_it() -> None:
    in_text = THOUGHT.model_copy(
        update={"content": "<think>\nStoke, no\n</think>\n\n<answer>x</answer>", "reasoning": None}
    )
    tally = Tally({})
    for number, turn in enumerate((THOUGHT, in_text)):
        tally.add(rollout(number, ONE_CALL, messages=(*ONE_CALL.messages[:-1], turn)))
    spread = tally.statistics().groups["all"].figures["reasoning_characters"]
    assert (spread.mean, spread.std) == (9, 0)


def test_running_deviations_keep_their_precision_far_from_zero() -> None:
    tally = Tally({})
    for tokens in (1_000_000_000_001, 1_000_000_000_002, 1_000_000_000_003):
        tally.add(rollout(tokens, ONE_CALL, usage=usage((tokens, 0))))
    assert tally.statistics().groups["all"].figures["prompt_tokens"].std == pytest.approx(
        (2 / 3) ** 0.5
    )


TAGGED = '\n\n<information>Doc 1(Title: B) x\nDoc 2(Title: "Zo (a)") Stoke</information>\n\n'


@pytest.mark.parametrize(
    ("passages", "share"), [(None, 0.5), (TAGGED, 0.5), (TAGGED + "[1] Stoke (b)\n", 1)]
)
def test_evidence_known_by_title_is_shown_with_a_passage_of_that_title(
    passages: str | None, share: float, tmp_path: Path
) -> None:
    found = RIGHT
    if passages:
        found = RIGHT.model_copy(
            update={"messages": (Message(role="tool", content=passages), *RIGHT.messages[-1:])}
        )
    metadata = QuestionMetadata.model_validate({"supporting_titles": ["B", '"Stoke (b)"']})
    write_jsonl(tmp_path / "t.jsonl", [found])
    write_jsonl(tmp_path / "q.jsonl", [QUESTIONS[0].model_copy(update={"metadata": metadata})])
    figures = read_statistics(tmp_path / "t.jsonl", tmp_path / "q.jsonl").groups["success"].figures
    assert figures["evidence_shown"].mean == share
    assert figures["answered_without_evidence"].mean == (share < 1)


def test_the_command_prints_tables_markdown_and_json(files: tuple[Path, Path]) -> None:
    arguments = ["trajectories", "stats", str(files[0]), "--questions", str(files[1])]
    printed = CliRunner().invoke(app, arguments, env={"COLUMNS": "150"}).stdout
    for part in (
        "Rollouts of 3 questions",
        "success (1)",
        "Rollouts by rounds",
        "Rollouts by tool calls",
        "deadline",
    ):
        assert part in printed
    markdown = CliRunner().invoke(app, [*arguments, "--markdown"]).stdout
    assert "| rounds | 2.333 ± 0.471 | 3.000 ± 0.000 | 2.000 ± 0.000 |" in markdown
    assert "| 2 | 2 (66.7%) | 0 (0.0%) | 2 (100.0%) |" in markdown
    assert "## How rollouts ended" in markdown
    printed = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert printed["questions"] == 3


def refusal(*arguments: str) -> str:
    error = CliRunner().invoke(app, ["trajectories", *arguments]).exception
    assert isinstance(error, ConfigError)
    return str(error)


def test_questions_of_another_split_are_refused(files: tuple[Path, Path]) -> None:
    trajectories, questions = files
    write_jsonl(questions, [QUESTIONS[0].model_copy(update={"id": "other"})])
    message = refusal("stats", str(trajectories), "--questions", str(questions))
    assert message.startswith(f"0 of 3 rollouts of {trajectories} are of questions in {questions};")
    # Nobody knows the evidence of these, and nothing is wrong
    write_jsonl(questions, QUESTIONS[2:])
    arguments = ["trajectories", "stats", str(trajectories), "--questions", str(questions)]
    assert CliRunner().invoke(app, arguments).exit_code == 0


def test_a_file_of_something_else_than_trajectories_is_named_with_what_reads_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "p.jsonl"
    row = {"id": "q1", "question": "?", "golden_answers": ["x"]}
    for kind, command in (({"pred": "x"}, "score"), ({"output": {}}, "trajectories convert")):
        file.write_text(json.dumps(row | kind) + "\n")
        assert f"`deepsearch {command} {file}" in refusal("stats", str(file))
        convert = ("convert", str(file), str(tmp_path / "rows.jsonl"), "--to", "trl")
        assert f"`deepsearch {command} {file}" in refusal(*convert)
    assert "is a folder; name a file in it" in refusal("stats", str(tmp_path))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").touch()
    with pytest.raises(ArtifactError):
        read_statistics(tmp_path / "t.jsonl", None)
