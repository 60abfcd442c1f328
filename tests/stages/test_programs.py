"""What stage files decide themselves, beside their one call of the library."""

from pathlib import Path

import pytest

from deepsearch_rl.agent.collect import TrajectoryFile
from deepsearch_rl.core.errors import UnknownNameError
from deepsearch_rl.core.files import write_json
from deepsearch_rl.core.profile import find_profile
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
