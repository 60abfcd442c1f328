"""What a run takes, before it starts: sizes of the profile times slopes."""

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.cli.plan import Plan, make_plan
from deepsearch_rl.cli.plan_cpu import USUAL
from deepsearch_rl.cli.plan_sizes import PRICES, SLOPES
from deepsearch_rl.core.errors import UnknownNameError
from deepsearch_rl.core.profile import Profile, find_profile, profile_names
from tests.conftest import ROOT

MEASURED_S = {
    "prepare_model": r"(\d+) s for the base model",
    "rl": r"(\d+) s for RL,",
}
"""Where docs/running.md states the seconds of a whole run of tiny, by kind of stage."""
SPEEDS = {
    "float32_gflops": 130.0,
    "float32_few_gflops": 45.0,
    "bfloat16_gflops": 500.0,
    "bfloat16_few_gflops": 75.0,
}
"""Of a core of the machine of that run."""
SMOLLM = {
    "architectures": ["LlamaForCausalLM"],
    **USUAL,
}
COMPUTED = ("sft", "rl@sft", "evaluate@sft")
"""Stages in which a large model is nearly all."""


def plan_of(name: str, slopes: dict[str, float] | None = None, **overrides: object) -> Plan:
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return make_plan(find_profile(ROOT, name).with_overrides(changes), {**SPEEDS, **(slopes or {})})


def seconds(plan: Plan) -> dict[str, float]:
    return {stage.stage: stage.seconds for stage in plan.stages}


@pytest.mark.parametrize("name", profile_names(ROOT))
def test_the_stages_of_a_profile_are_planned_in_the_order_of_its_graph(name: str) -> None:
    graph = yaml.safe_load(find_profile(ROOT, name).path.with_name("dvc.yaml").read_text())
    planned = [stage.stage.partition("@")[0] for stage in plan_of(name).stages]
    # A stage that loops over nothing has no line
    assert list(dict.fromkeys(planned)) == [stage for stage in graph["stages"] if stage in planned]
    assert {"download", "evaluate"} <= set(planned)


def test_the_plan_of_tiny_is_within_a_tenth_of_the_run_that_its_slopes_are_from() -> None:
    planned = seconds(plan_of("tiny"))
    page = " ".join((ROOT / "docs" / "running.md").read_text().split())
    for kind, pattern in MEASURED_S.items():
        [measured_s] = re.findall(pattern, page)
        total_s = sum(value for stage, value in planned.items() if stage.partition("@")[0] == kind)
        assert total_s == pytest.approx(int(measured_s), rel=0.1), kind

    [whole_s] = re.findall(r"the run takes (\d+) s", page)
    assert plan_of("tiny").hours * 3600 == pytest.approx(int(whole_s), rel=0.1)


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


def test_an_index_takes_as_long_as_the_slower_of_its_tokens_and_its_encoder() -> None:
    one, sixteen = (
        seconds(plan_of("search_r1", {"host_cores": cores}))["index"] for cores in (1, 16)
    )
    waits_for_tokens = 21_015_324 * (
        SLOPES["tokenize_passage_s"][1] + SLOPES["tensor_passage_s"][1]
    )
    waits_for_encoder = 21_015_324 * SLOPES["encode_passage_s"][1]
    assert one - sixteen == pytest.approx(waits_for_tokens - waits_for_encoder)


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


class Project:
    """A project with tiny's graph over a model's folder, in which the command plans."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "dvc.yaml").write_bytes((ROOT / "dvc.yaml").read_bytes())
        self.values = yaml.safe_load((ROOT / "params.yaml").read_text())
        self.values["prepare_model"] = {"source": "folder", "path": "model", "hub": None}
        (folder / "model").mkdir()
        self.shape()

    def shape(self, **changes: int) -> None:
        """Write the model's config.json."""
        text = json.dumps({**SMOLLM, **changes})
        (self._folder / "model" / "config.json").write_text(text)

    def plan(self, *options: str) -> dict[str, dict[str, float]]:
        """Return the stages as `deepsearch plan --json` shows them."""
        speeds = [f"--slope={name}={value}" for name, value in SPEEDS.items()]
        stages = json.loads(self.run("--json", *speeds, *options))["stages"]
        return {stage["stage"]: stage for stage in stages}

    def run(self, *options: str) -> str:
        """Return what the command prints."""
        (self._folder / "params.yaml").write_text(yaml.safe_dump(self.values))
        result = CliRunner().invoke(app, ["plan", "tiny", *options])
        assert result.exit_code == 0, result.output
        return result.stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


def test_a_model_of_twice_the_layers_takes_twice_the_time(project: Project) -> None:
    tiny = seconds(plan_of("tiny"))
    single = project.plan()
    project.shape(num_hidden_layers=60)
    double = project.plan()
    for stage in COMPUTED:
        assert single[stage]["seconds"] > 15 * tiny[stage], stage
        assert 1.7 < double[stage]["seconds"] / single[stage]["seconds"] < 2.05, stage
        assert double[stage]["host_gib"] > single[stage]["host_gib"] + 0.2, stage


def test_a_model_of_a_hub_is_as_large_as_its_name_says(project: Project) -> None:
    local = project.plan()
    hub = {"repository": "nobody/Some-135M-Instruct", "revision": "a" * 40}
    project.values["prepare_model"] = {"source": "hub", "hub": hub}
    named = project.plan()
    for stage in COMPUTED:
        assert named[stage]["seconds"] == pytest.approx(local[stage]["seconds"], rel=0.05), stage


def test_a_core_that_multiplies_faster_takes_less_time(project: Project) -> None:
    usual = project.plan()
    faster = project.plan("--slope=float32_gflops=520", "--slope=float32_few_gflops=180")
    for stage in COMPUTED:
        assert 0.2 < faster[stage]["seconds"] / usual[stage]["seconds"] < 0.7, stage


def test_bfloat16_halves_the_memory_of_slots_and_takes_less_time_to_train(project: Project) -> None:
    single = project.plan()
    project.values["sft"]["dtype"] = "bfloat16"
    project.values["serving"]["cpu"]["dtype"] = "bfloat16"
    half = project.plan()
    assert half["sft"]["seconds"] < 0.7 * single["sft"]["seconds"]
    # Of two servers: slots, tokens, layers, keys and values, their width, bytes
    slots_gib = 2 * 192 * 1024 * 30 * 2 * 192 * 2 / 2**30
    weights_gib = 2 * 135e6 * 2 / 2**30
    saved = single["evaluate@sft"]["host_gib"] - half["evaluate@sft"]["host_gib"]
    assert saved == pytest.approx(slots_gib + weights_gib, rel=0.02)


def test_threads_and_an_adapter_in_few_layers_shorten_training(project: Project) -> None:
    usual = project.plan()["sft"]["seconds"]
    project.values["sft"]["lora_layers"] = 10
    few_layers = project.plan()["sft"]["seconds"]
    project.values["sft"]["threads"] = 2
    two_threads = project.plan()["sft"]["seconds"]
    assert 0.55 < few_layers / usual < 0.8
    assert 0.5 < two_threads / few_layers < 0.75


def test_two_servers_of_a_thread_share_an_evaluation_and_ifeval(project: Project) -> None:
    two = project.plan()
    project.values["serving"]["cpu"]["servers"] = 1
    one = project.plan()
    for stage in ("evaluate@sft", "ifeval@sft"):
        assert 0.4 < two[stage]["seconds"] / one[stage]["seconds"] < 0.75, stage
        assert two[stage]["host_gib"] > 1.5 * one[stage]["host_gib"], stage


def test_the_memory_of_rl_grows_with_the_tokens_of_a_batch(project: Project) -> None:
    large = project.plan()["rl@sft"]["host_gib"]
    project.values["rl"]["max_batch_tokens"] //= 4
    assert project.plan()["rl@sft"]["host_gib"] < large - 5


def test_rows_are_counted_by_the_report_of_filter_where_there_is_one(
    project: Project, tmp_path: Path
) -> None:
    guessed = project.plan()
    counts = {"rows": 300, "trajectories": 600, "searches": 2.0, "tokens": {"mean": 800.0}}
    report = tmp_path / "reports" / "tiny" / "filter.json"
    report.parent.mkdir(parents=True)
    report.write_text(json.dumps(counts))
    counted = project.plan()
    report.write_text(json.dumps({**counts, "rows": 600}))
    assert guessed["sft"]["seconds"] != counted["sft"]["seconds"]
    assert project.plan()["sft"]["seconds"] == pytest.approx(
        2 * counted["sft"]["seconds"], rel=0.05
    )


def test_the_machine_is_timed_and_the_plan_says_what_it_rests_on(project: Project) -> None:
    printed = project.run()
    assert "134M parameters in 30 layers (model/config.json)" in printed
    assert re.search(r"A core of this machine has \d+ GFLOP/s in float32", printed)


def test_a_model_that_is_not_there_is_not_counted_and_the_plan_says_so(project: Project) -> None:
    project.values["prepare_model"]["path"] = "elsewhere"
    assert "The base model is not there" in project.run()
