"""What stage files decide themselves, beside their one call of the library."""

from pathlib import Path

import pytest

from deepsearch_rl.errors import UnknownNameError
from deepsearch_rl.profile import find_profile
from stages import filter as filter_stage
from stages import optimize_prompt
from tests.conftest import ROOT
from tests.settings import new_scratch


def test_filter_names_the_question_sets_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
