"""Phases run in order, and those that need a failed one are skipped."""

from pathlib import Path

import pytest

from deepsearch_rl.core.errors import CommandError, ConfigError
from tools import ROOT
from tools.preflight import phases
from tools.preflight.command import require_trainable, table_row
from tools.preflight.phases import Outcome, Preflight, SkippedError, chosen
from tools.preflight.project import Project, cut_copy


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return cut_copy(ROOT, "smoke", tmp_path / "copy")


def test_one_phase_is_run_with_those_that_it_needs() -> None:
    assert chosen("unsloth_merge") == ["machine", "prepare", "rl", "unsloth_merge"]
    assert chosen(None) == list(phases.PHASES)


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


@pytest.mark.parametrize(
    ("profile", "reason"),
    [("multihoprag", "does not train"), ("search_r1", "search_tags|does not train")],
)
def test_a_profile_whose_training_cannot_be_tried_is_refused(profile: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        require_trainable(profile)
