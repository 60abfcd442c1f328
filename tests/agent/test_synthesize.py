"""The scripted teacher through the real agent loop and a real retrieval server."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from deepsearch_rl.agent import synthesize as module
from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.agent.config import AgentConfig, require_made_with
from deepsearch_rl.agent.synthesize import SynthesizeConfig, synthesize
from deepsearch_rl.core.answers import SUCCESS_F1, f1
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import read_distinct, write_json, write_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question, Trajectory
from deepsearch_rl.serve.launch import ServingConfig
from tests.worlds import World

Teach = Callable[..., list[Trajectory]]


@pytest.fixture
def teach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smoke: Profile, world_server: str
) -> Teach:
    """Synthesizes in an empty folder and returns the artifact's trajectories."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "serve_index", lambda *_: contextlib.nullcontext(world_server))
    setting = RolloutSetting.of(smoke, "multihoprag")
    serving = smoke.section("serving", ServingConfig)

    def run(
        source: World, out: Path = tmp_path / "teacher.jsonl", **changes: object
    ) -> list[Trajectory]:
        config = SynthesizeConfig(**(dict(smoke.section("synthesize", SynthesizeConfig)) | changes))
        files = {
            "questions": source.questions.parent,
            "index": source.index,
            "chunks": source.chunks,
        }
        work = tmp_path / "work" / out.stem
        synthesize(config, setting.model_copy(update=files), serving, out, work)
        return list(read_distinct(out, Trajectory))

    return run


@pytest.mark.slow
def test_two_runs_write_the_same_bytes_of_calls_and_one_answer_with_notes_of_what_was_read(
    teach: Teach, world: World, smoke: Profile, tmp_path: Path
):
    trajectories = teach(world, tmp_path / "first.jsonl")
    teach(world, tmp_path / "second.jsonl")
    assert (tmp_path / "first.jsonl").read_bytes() == (tmp_path / "second.jsonl").read_bytes()
    assert len(trajectories) == 120
    assert (
        sum(
            f1(trajectory.answer, trajectory.golden_answers) >= SUCCESS_F1
            for trajectory in trajectories
        )
        > 60
    )
    for trajectory in trajectories:
        *searches, last = (
            message for message in trajectory.messages if message.role == "assistant"
        )
        assert all(len(message.tool_calls) == 1 for message in searches)
        first, *others = (
            message.content.split("\n")[0]
            for message in trajectory.messages
            if message.role == "assistant"
        )
        assert first.startswith("need ")
        assert all(note.startswith("found ") for note in others)
        assert (last.content, last.tool_calls) == (
            f"{others[-1]}\n<answer> {trajectory.answer}</answer>",
            (),
        )
        assert len(trajectory.retrievals) == len(searches)
    require_made_with(tmp_path / "first.jsonl", smoke.section("agent", AgentConfig))


def test_questions_without_a_plan_are_refused_before_any_answer(
    teach: Teach, world: World, tmp_path: Path
):
    source = replace(world, questions=tmp_path / "train.jsonl")
    write_jsonl(
        source.questions, [Question(id="real-1", question="Who?", golden_answers=("Mary",))]
    )
    with pytest.raises(ConfigError, match="real-1"):
        teach(source)


def test_an_empty_question_file_is_refused(teach: Teach, world: World, tmp_path: Path):
    (tmp_path / "train.jsonl").write_text("\n")
    with pytest.raises(ArtifactError, match="holds no question"):
        teach(replace(world, questions=tmp_path / "train.jsonl"))


def test_an_endpoint_without_its_key_names_the_variable(
    teach: Teach, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("TEACHER_KEY", raising=False)
    remote = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_variable": "TEACHER_KEY"}
    write_json(tmp_path / "api" / "endpoint.json", remote)
    with pytest.raises(ConfigError, match="TEACHER_KEY"):
        teach(world, teacher="api")


def test_a_teacher_without_settings_and_one_that_is_nowhere_are_refused(teach: Teach, world: World):
    with pytest.raises(ConfigError, match=r"synthesize\.scripted is null"):
        teach(world, scripted=None)
    with pytest.raises(ConfigError, match=r"synthesize\.teacher is 'script', .* no such folder"):
        teach(world, teacher="script")
