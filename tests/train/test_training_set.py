"""From a teacher's trajectories to training rows and the report."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from deepsearch_rl.agent.config import AgentConfig, write_manifest
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.core.errors import ArtifactError, CheckFailedError, ConfigError, UnknownNameError
from deepsearch_rl.core.files import read_json, read_jsonl, write_jsonl
from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.core.records import Message, Question, Trajectory
from deepsearch_rl.train.filters import FilterConfig
from deepsearch_rl.train.sft import SftConfig
from deepsearch_rl.train.swift_rows import SwiftRow, swift_row
from deepsearch_rl.train.training_set import build_training_set
from tests.conftest import ROOT
from tests.train import test_filters
from tests.train.test_filters import QUESTION


def trajectory(**changes: Any) -> Trajectory:
    """A trajectory that begins with the agent's system prompt."""
    made = test_filters.trajectory(**changes)
    return made.model_copy(
        update={"messages": (Message(role="system", content="Search."), *made.messages)}
    )


def sends_reasoning(agent: AgentConfig, history_reasoning: bool) -> AgentConfig:
    return agent.model_copy(update={"history_reasoning": history_reasoning})


@pytest.fixture
def agent(smoke: Profile, tmp_path: Path) -> AgentConfig:
    (tmp_path / "prompt.txt").write_text("Search.\n")
    return smoke.section("agent", AgentConfig).model_copy(
        update={"prompt": str(tmp_path / "prompt.txt")}
    )


@pytest.fixture
def paths(tmp_path: Path, model_folder: Path, agent: AgentConfig) -> SimpleNamespace:
    write_manifest(tmp_path / "teacher.jsonl", agent)
    write_jsonl(tmp_path / "questions.jsonl", [QUESTION])
    made = [trajectory(), trajectory(answer="Nobody"), trajectory(queries=())]
    named = [
        one.model_copy(update={"id": f"q#{number}", "sample": number})
        for number, one in enumerate(made)
    ]
    write_jsonl(tmp_path / "teacher.jsonl", named)
    return SimpleNamespace(
        trajectories=tmp_path / "teacher.jsonl",
        questions=tmp_path / "questions.jsonl",
        model=model_folder,
        rows=tmp_path / "sft" / "train.jsonl",
        report=tmp_path / "filter.json",
    )


@pytest.fixture
def config(smoke: Profile) -> FilterConfig:
    return smoke.section("filter", FilterConfig)


def test_the_report_counts_every_drop(
    paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig
):
    assert (
        build_training_set(config, agent, **vars(paths))
        == len(list(read_jsonl(paths.rows, SwiftRow)))
        == 1
    )
    report = read_json(paths.report)
    assert report["dropped"] == {
        "answered": 0, "success": 1, "searched": 1, "no_repeated_query": 0, "evidence_found": 0, "too_long": 0,
    }  # fmt: skip
    assert (report["trajectories"], report["rows"]) == (3, 1)


def test_a_call_in_the_middle_of_a_thought_is_no_row(
    paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig
):
    right = trajectory()
    turns = [
        turn.model_copy(update={"content": "<think>I look"}) if turn.tool_calls else turn
        for turn in right.messages
    ]
    cut = right.model_copy(update={"id": "q#1", "sample": 1, "messages": tuple(turns)})
    write_jsonl(paths.trajectories, [right, cut])
    assert build_training_set(config, agent, **vars(paths)) == 1
    assert read_json(paths.report)["dropped"]["unclosed_thought"] == 1


def test_a_question_gives_no_more_rows_than_its_limit(
    paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig
):
    made = [
        trajectory(queries=(f"mayor {n}",)).model_copy(update={"id": f"q#{n}", "sample": n})
        for n in range(4)
    ]
    write_jsonl(paths.trajectories, made)
    assert build_training_set(config, agent, **vars(paths)) == 4
    assert "per_question" not in read_json(paths.report)["dropped"]
    assert (
        build_training_set(config.model_copy(update={"per_question": 3}), agent, **vars(paths)) == 3
    )
    assert read_json(paths.report)["dropped"]["per_question"] == 1


def test_rows_that_are_too_long_are_dropped_and_an_empty_training_set_is_refused(
    paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig
):
    with pytest.raises(CheckFailedError, match="too_long"):
        build_training_set(config.model_copy(update={"max_tokens": 10}), agent, **vars(paths))
    assert not paths.rows.exists()


def test_a_missing_input_names_the_file(
    paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig
):
    paths.trajectories.unlink()
    with pytest.raises(ArtifactError, match=r"teacher\.jsonl"):
        build_training_set(config, agent, **vars(paths))


def test_an_unknown_predicate_is_refused(config: FilterConfig):
    with pytest.raises(UnknownNameError, match="'success'"):
        FilterConfig(**(dict(config) | {"predicates": ("succes",)}))


def test_a_question_set_that_is_not_the_teachers_is_refused(
    paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig
):
    write_jsonl(paths.questions, [Question(id="other", question="Who?", golden_answers=("Mary",))])
    with pytest.raises(ArtifactError, match="question"):
        build_training_set(config, agent, **vars(paths))


def thoughtful(**fields: object) -> Trajectory:
    """A successful trajectory that thinks in both its turns."""
    made = trajectory()
    messages = [
        one.model_copy(update={"reasoning": f"Thought {number}."})
        if one.role == "assistant"
        else one
        for number, one in enumerate(made.messages)
    ]
    return made.model_copy(update={"messages": tuple(messages), **fields})


@pytest.fixture
def thinking_paths(paths: SimpleNamespace) -> SimpleNamespace:
    write_jsonl(paths.trajectories, [thoughtful()])
    return paths


@pytest.mark.parametrize(
    ("flatten", "setting"), [(False, "agent.history_reasoning: true"), (True, "filter.flatten")]
)
def test_rows_with_prompts_that_the_agent_never_sends_are_refused(
    thinking_paths: SimpleNamespace,
    config: FilterConfig,
    agent: AgentConfig,
    flatten: bool,
    setting: str,
) -> None:
    chosen = config.model_copy(
        update={"flatten": flatten, "loss_scale": "last_round" if flatten else "default"}
    )
    with pytest.raises(ConfigError, match=setting):
        build_training_set(chosen, sends_reasoning(agent, flatten), **vars(thinking_paths))
    assert not thinking_paths.rows.exists()


@pytest.mark.parametrize("flatten", [False, True])
def test_reasoning_that_the_models_template_does_not_render_is_refused(
    thinking_paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig, flatten: bool
) -> None:
    chosen = config.model_copy(
        update={"flatten": flatten, "loss_scale": "last_round" if flatten else "default"}
    )
    with pytest.raises(CheckFailedError, match="training tokens differ"):
        build_training_set(chosen, sends_reasoning(agent, not flatten), **vars(thinking_paths))


@pytest.mark.parametrize("history_reasoning", [False, True])
def test_without_reasoning_rows_are_the_same_whatever_is_sent_back(
    paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig, history_reasoning: bool
) -> None:
    build_training_set(config, sends_reasoning(agent, history_reasoning), **vars(paths))
    [row] = read_jsonl(paths.rows, SwiftRow)
    assert row == swift_row(trajectory())


def test_flattened_rows_train_one_turn_each_and_are_counted_as_rows(
    paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig
) -> None:
    flat = config.model_copy(update={"flatten": True, "loss_scale": "last_round"})
    assert build_training_set(flat, agent, **vars(paths)) == 2
    assert [len(row.messages) for row in read_jsonl(paths.rows, SwiftRow)] == [3, 5]
    report = read_json(paths.report)
    assert (report["rows"], report["searches"], report["trajectories"]) == (2, 1, 3)


@pytest.mark.parametrize(
    ("flatten", "scale"), [(True, "default"), (False, "last_round+ignore_think_prefix")]
)
def test_a_loss_that_does_not_fit_the_rows_is_refused(
    config: FilterConfig, flatten: bool, scale: str
) -> None:
    with pytest.raises(ValidationError, match="last turn"):
        FilterConfig(**(dict(config) | {"flatten": flatten, "loss_scale": scale}))


def test_trajectories_of_tags_are_refused(
    paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig
) -> None:
    write_jsonl(paths.trajectories, [trajectory().model_copy(update={"protocol": "search_tags"})])
    with pytest.raises(ConfigError, match=r"agent\.protocol"):
        build_training_set(config, agent, **vars(paths))


def test_trajectories_of_another_prompt_are_refused(
    paths: SimpleNamespace, config: FilterConfig, agent: AgentConfig
) -> None:
    Path(agent.prompt).write_text("Search twice.\n")
    with pytest.raises(
        ConfigError,
        match=r"teacher\.jsonl .* another system prompt .*prompt\.txt.* synthesize again",
    ):
        build_training_set(config, agent, **vars(paths))
    write_manifest(paths.trajectories, agent)  # of a file that was put in place by hand
    with pytest.raises(ConfigError, match="trajectory q#0 was made with another system prompt"):
        build_training_set(config, agent, **vars(paths))
    assert not paths.rows.exists()


def test_trajectories_of_another_tool_schema_or_of_nobody_are_refused(
    paths: SimpleNamespace,
    config: FilterConfig,
    agent: AgentConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "deepsearch_rl.agent.config.RETRIEVE_TOOL", {**RETRIEVE_TOOL, "strict": True}
    )
    with pytest.raises(ConfigError, match="another tool schema"):
        build_training_set(config, agent, **vars(paths))
    paths.trajectories.with_name("manifest.json").unlink()
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        build_training_set(config, agent, **vars(paths))


@pytest.mark.parametrize(
    "path", [ROOT / "params.yaml", *sorted(ROOT.glob("profiles/*/params.yaml"))]
)
def test_what_is_proved_is_what_is_trained(path: Path) -> None:
    params = load_profile(path)
    if "sft" not in params.values:
        return
    proved, trained = params.section("filter", FilterConfig), params.section("sft", SftConfig)
    for field in ("template", "agent_template", "loss_scale"):
        assert getattr(proved, field) == getattr(trained, field)
