"""What a run takes, before it starts: sizes of the profile times slopes."""

import json
import re

import pytest
import yaml
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.cli.plan import PRICES, SLOPES, Plan, make_plan
from deepsearch_rl.core.errors import UnknownNameError
from deepsearch_rl.core.profile import Profile, find_profile, profile_names
from tests.conftest import ROOT

MEASURED_S = {
    "prepare_model": r"(\d+) s for the base model",
    "rl": r"(\d+) s for RL,",
    "evaluate": r"(\d+) s for [\d,]+ evaluated rollouts",
}
"""Where docs/running.md states the seconds of a whole run of tiny, by kind of stage."""


def plan_of(name: str, slopes: dict[str, float] | None = None, **overrides: object) -> Plan:
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return make_plan(find_profile(ROOT, name).with_overrides(changes), slopes or {})


def seconds(plan: Plan) -> dict[str, float]:
    return {stage.stage: stage.seconds for stage in plan.stages}


@pytest.mark.parametrize("name", profile_names(ROOT))
def test_the_stages_of_a_profile_are_planned_in_the_order_of_its_graph(name: str) -> None:
    graph = yaml.safe_load(find_profile(ROOT, name).path.with_name("dvc.yaml").read_text())
    planned = [stage.stage.partition("@")[0] for stage in plan_of(name).stages]
    # A stage that loops over nothing has no line
    assert list(dict.fromkeys(planned)) == [stage for stage in graph["stages"] if stage in planned]
    assert {"download", "evaluate", "report"} <= set(planned)


def test_the_plan_of_tiny_is_within_a_tenth_of_the_run_that_its_slopes_are_from() -> None:
    planned = seconds(plan_of("tiny"))
    page = " ".join((ROOT / "docs" / "running.md").read_text().split())
    for kind, pattern in MEASURED_S.items():
        [measured_s] = re.findall(pattern, page)
        total_s = sum(value for stage, value in planned.items() if stage.partition("@")[0] == kind)
        assert total_s == pytest.approx(int(measured_s), rel=0.1), kind


def test_time_grows_with_steps_and_samples_in_the_stages_that_they_are_of() -> None:
    small = seconds(plan_of("tiny"))
    large = seconds(plan_of("tiny", rl__steps__sft=80, evaluate__sets__multihoprag__samples=6))
    assert large["rl@sft"] > 1.8 * small["rl@sft"]
    assert large["evaluate@sft"] > 1.25 * small["evaluate@sft"]
    grown = {stage for stage in small if small[stage] != large[stage]}
    assert grown == {
        *("rl@sft", "evaluate@base", "evaluate@sft", "evaluate@sft_rl", "report", "track")
    }


def test_a_teacher_of_an_api_has_tokens_and_a_price() -> None:
    plan = plan_of("gpu")
    (teacher,) = (stage for stage in plan.stages if stage.stage == "synthesize")
    samples = find_profile(ROOT, "gpu").value("synthesize")["samples"]
    # The published questions of the file, without val and dev
    assert teacher.tokens[0] == (2556 - 200 - 100) * samples * plan.slopes["prompt_tokens"]
    read, written = PRICES[teacher.api]
    price = (teacher.tokens[0] * read + teacher.tokens[1] * written) / 1e6
    assert teacher.price_usd == pytest.approx(price)


def test_a_teacher_on_this_machine_takes_its_gpu_and_no_tokens() -> None:
    stages = {stage.stage: stage for stage in plan_of("single_gpu").stages}
    local = stages["synthesize"]
    assert (local.api, local.tokens, local.price_usd) == ("", (0.0, 0.0), 0.0)
    assert local.gpu_gib > 10


def test_an_endpoint_whose_price_is_not_known_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_MODEL", "gpt-x")
    written = [stage for stage in plan_of("own").stages if stage.stage == "make_questions@own"]
    assert [(stage.api, sum(stage.tokens), stage.price_usd) for stage in written] == [
        ("gpt-x", 5_000_000, None)
    ]


def test_verl_shares_rollouts_updates_and_memory_among_its_gpus() -> None:
    def rl(**overrides: object) -> tuple[float, float]:
        plan = plan_of("search_r1", **overrides)
        (work,) = (stage for stage in plan.stages if stage.stage == "rl@base")
        return work.seconds, work.gpu_gib

    eight_s, eight_gib = rl()
    sixteen_s, sixteen_gib = rl(rl__backend__verl__nodes=2)
    assert 0.5 < sixteen_s / eight_s < 0.6
    assert sixteen_gib <= eight_gib


def test_a_slope_of_the_command_takes_the_place_of_the_table_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, ["plan", "tiny", "--slope", "serve_start_s=3", "--json"])
    plan = json.loads(result.stdout)
    assert plan["slopes"]["serve_start_s"] == 3.0
    assert plan["slopes"]["sft_token_s"] == SLOPES["sft_token_s"][0]
    assert plan["hours"] > 0


def test_a_slope_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownNameError, match="rollout_s"):
        plan_of("tiny", {"rolout_s": 1.0})


def test_the_table_ends_with_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    output = CliRunner().invoke(app, ["plan", "gpu"]).stdout
    assert "all / highest" in output
    assert "USD" in output
    profile: Profile = find_profile(ROOT, "gpu")
    assert f"A run takes {make_plan(profile, {}).hours:.1f} h." in output
