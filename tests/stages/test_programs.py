"""What stage files decide themselves, beside their one call of the library."""

from pathlib import Path

import pytest

from deepsearch_rl.agent.collect import TrajectoryFile
from deepsearch_rl.core.errors import UnknownNameError
from deepsearch_rl.core.files import write_json
from deepsearch_rl.core.processes import ProcessGuard
from deepsearch_rl.core.profile import Profile, find_profile
from deepsearch_rl.core.stage import Scratch
from deepsearch_rl.train.followed import RUNNER, followed
from stages import filter as filter_stage
from stages import optimize_prompt, synthesize
from tests.conftest import ROOT
from tests.settings import new_scratch


def test_filter_names_the_question_sets_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = find_profile(ROOT, "smoke").with_overrides({"filter.dataset": "multihoprg"})
    (profile.data / "questions" / "multihoprag").mkdir(parents=True)
    with pytest.raises(UnknownNameError, match=r"'multihoprg'.*'multihoprag'"):
        filter_stage.main(profile)


def test_the_answers_that_a_search_for_a_prompt_paid_for_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(optimize_prompt, "optimize_prompt", lambda *_: None)
    scratch = new_scratch(tmp_path)
    optimize_prompt.main(find_profile(ROOT, "multihoprag"), "api", scratch)
    assert scratch.is_kept


@pytest.mark.parametrize(
    ("teacher", "server_failures", "is_kept"),
    [("api", 0, True), ("script", 0, False), ("script", 1, True)],
)
def test_the_teachers_answers_are_kept_where_they_cost_money_or_a_server_failed_some(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    teacher: str,
    server_failures: int,
    is_kept: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    remote = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_variable": "TEACHER_KEY"}
    write_json(tmp_path / "api" / "endpoint.json", remote)
    written = TrajectoryFile(tmp_path / "teacher.jsonl", count=9, server_failures=server_failures)
    monkeypatch.setattr(synthesize, "synthesize", lambda *_: written)
    scratch = new_scratch(tmp_path)
    profile = find_profile(ROOT, "smoke").with_overrides({"synthesize.teacher": teacher})
    synthesize.main(profile, scratch)
    assert scratch.is_kept == is_kept


@pytest.mark.parametrize(
    ("has_runner", "has_section"), [(True, True), (False, True), (True, False)]
)
def test_a_training_stage_is_followed_in_a_project_whose_profile_has_a_section_track(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_runner: bool, has_section: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if has_runner:
        RUNNER.parent.mkdir()
        RUNNER.touch()
    section = {"track": {"experiment": "tests"}} if has_section else {}
    profile = Profile(
        Path("params.yaml"), {"profile": "tiny", "python": {"core": ".venv/bin/python"}, **section}
    )
    commands: list[list[str]] = []
    monkeypatch.setattr(ProcessGuard, "start", lambda _, command, **__: commands.append(command))
    scratch, trained = new_scratch(tmp_path, "rl@sft"), list[Scratch]()

    def main(_: Profile, scratch: Scratch) -> None:
        trained.append(scratch)

    followed(main)(profile, scratch)
    assert trained == [scratch]
    assert len(commands) == (has_runner and has_section)
    for command in commands:
        assert command[:2] == ["tools/python", ".venv/bin/python"]
        assert command[command.index("--stage") + 1] == "rl-sft"
        assert "dvc.stage=rl@sft" in command
