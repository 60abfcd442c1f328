"""Phases run in order, and those that need a failed one are skipped."""

from pathlib import Path

import pytest

from deepsearch_rl.core.errors import CommandError, ConfigError
from tools import ROOT
from tools.preflight import phases
from tools.preflight.command import require_trainable, table_row
from tools.preflight.phases import PHASES, Outcome, Preflight, SkippedError, chosen, phases_of
from tools.preflight.project import Project, cut_copy


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return cut_copy(ROOT, "smoke", tmp_path / "copy")


def test_one_phase_is_run_with_those_that_it_needs() -> None:
    assert chosen("unsloth_merge", PHASES) == ["machine", "prepare", "rl", "unsloth_merge"]
    assert chosen(None, PHASES) == list(PHASES)


def test_a_profile_without_a_teacher_has_the_phases_of_its_stages() -> None:
    phases = phases_of(require_trainable("search_r1"))
    assert list(phases) == ["machine", "prepare", "index", "rl", "evaluate"]
    assert phases["evaluate"] == ("rl",), "in place of the merge that it does not have"
    assert phases_of(require_trainable("smoke")) == dict(PHASES)


def test_a_failed_phase_skips_those_that_need_it_and_no_others(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Preflight) -> None:
        raise CommandError("`stages.rl` failed: the GPU is full.")

    def has_nothing_to_do(_: Preflight) -> None:
        raise SkippedError("no teacher needs a key")

    for name in phases.PHASES:
        monkeypatch.setattr(Preflight, name, lambda _: {"rows": 3.0})
    monkeypatch.setattr(Preflight, "rl", fails)
    monkeypatch.setattr(Preflight, "synthesize", has_nothing_to_do)

    outcomes: dict[str, Outcome] = {}
    for name in phases.PHASES:
        outcomes[name] = Preflight(project).run(name, outcomes)
    assert (outcomes["rl"].status, outcomes["rl"].message) == (
        "failed",
        "`stages.rl` failed: the GPU is full.",
    )
    assert outcomes["unsloth_merge"].message == "needs rl"
    assert outcomes["evaluate"].message == "needs unsloth_merge"
    assert outcomes["synthesize"].status == "skipped"
    passed = {name for name, outcome in outcomes.items() if outcome.status == "passed"}
    assert passed == {"machine", "prepare", "index", "sft", "merge", "memory"}
    assert table_row(outcomes["sft"])[3] == "rows 3"


def test_a_profile_that_trains_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="trains no model by RL"):
        require_trainable("multihoprag")
