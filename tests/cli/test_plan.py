"""What a run takes, before it starts: sizes of the profile times slopes."""

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.cli.planning import slopes as slopes_module
from deepsearch_rl.cli.planning.plan import Plan, make_plan, require_hours
from deepsearch_rl.cli.planning.scale import verl_scales
from deepsearch_rl.cli.planning.sizes import StageWork
from deepsearch_rl.cli.planning.slopes import read_slopes
from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnknownNameError
from deepsearch_rl.core.files import write_json
from deepsearch_rl.core.profile import Profile, find_profile, profile_names
from tests.conftest import ROOT

MEASURED_S = {
    "prepare_model": r"(\d+) s for the base model",
    "rl": r"(\d+) s for RL,",
    "evaluate": r"(\d+) s for [\d,]+ evaluated rollouts",
}
"""Where docs/running.md states the seconds of a whole run of tiny, by kind of stage."""


@pytest.fixture(autouse=True)
def as_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine as fast as the one of the slopes; the product itself has a test."""
    monkeypatch.setattr(
        slopes_module, "calibrate", lambda: read_slopes().machines["laptop"].calibration_s
    )


def seconds(plan: Plan) -> dict[str, float]:
    return {work.stage: work.seconds(plan.slopes) for work in plan.stages}


def profile(name: str, **overrides: object) -> Profile:
    return find_profile(ROOT, name).with_overrides(
        {key.replace("__", "."): value for key, value in overrides.items()}
    )


def stages_of(name: str) -> set[str]:
    """The stages of a profile's graph, with their items."""
    graph = yaml.safe_load((find_profile(ROOT, name).path.with_name("dvc.yaml")).read_text())[
        "stages"
    ]
    values = find_profile(ROOT, name)
    prompts = list(values.value("optimize_prompt")["models"])
    items = {
        "optimize_prompt.models": prompts,
        "make_questions.documents": list(values.value("make_questions")["documents"]),
        "models": list(values.value("models")),
        "rl.starts": values.value("rl")["starts"],
    }
    found: set[str] = set()
    for stage, entry in graph.items():
        loop = str(entry.get("foreach") or entry.get("matrix") or "")
        names = next((names for key, names in items.items() if key in loop), None)
        found |= {stage} if names is None else {f"{stage}@{item}" for item in names}
    return found


@pytest.mark.parametrize("name", ["tiny", "smoke", "gpu"])
def test_every_stage_of_the_graph_is_planned(name: str) -> None:
    assert set(seconds(make_plan(profile(name), {}))) == stages_of(name)


def test_a_profile_that_trains_nothing_has_no_stage_of_training() -> None:
    assert set(seconds(make_plan(profile("multihoprag"), {}))) == {
        *("download", "chunk", "index", "optimize_prompt@api", "evaluate@api", "report", "track")
    }


def test_questions_of_ones_own_documents_are_planned_by_their_budget() -> None:
    planned = {work.stage: work for work in make_plan(profile("own"), {}).stages}
    assert set(planned) == {
        *("make_questions@own", "download", "chunk", "index", "evaluate@api", "report", "track")
    }
    assert sum(planned["make_questions@own"].tokens) == 5_000_000


def test_the_plan_of_tiny_is_within_a_tenth_of_the_run_that_its_slopes_are_from() -> None:
    planned = seconds(make_plan(profile("tiny"), {}))
    page = " ".join((ROOT / "docs" / "running.md").read_text().split())
    for kind, pattern in MEASURED_S.items():
        [measured_s] = re.findall(pattern, page)
        total_s = sum(value for stage, value in planned.items() if stage.partition("@")[0] == kind)
        assert total_s == pytest.approx(int(measured_s), rel=0.1), kind


def test_time_grows_with_steps_questions_and_samples() -> None:
    small = seconds(make_plan(profile("tiny"), {}))
    large = seconds(
        make_plan(profile("tiny", rl__steps__sft=80, evaluate__sets__multihoprag__samples=6), {})
    )
    assert large["rl@sft"] > 1.8 * small["rl@sft"]
    assert large["evaluate@sft"] > 1.25 * small["evaluate@sft"]
    assert {stage for stage in small if small[stage] != large[stage]} == {
        *(
            "rl@sft",
            "evaluate@base",
            "evaluate@sft",
            "evaluate@sft_rl",
            "report",
            "track",
        )
    }


def test_published_questions_are_counted_with_the_rest_of_their_file() -> None:
    plan = make_plan(profile("gpu"), {})
    (teacher,) = (work for work in plan.stages if work.stage == "synthesize")
    samples = find_profile(ROOT, "gpu").value("synthesize")["samples"]
    assert teacher.tokens[0] == (2556 - 200 - 100) * samples * plan.slopes["prompt_tokens"].value
    price = plan.file.prices[teacher.api]
    assert plan.cost(teacher) == pytest.approx(
        (teacher.tokens[0] * price.prompt + teacher.tokens[1] * price.completion) / 1e6
    )


def test_a_teacher_on_this_machine_takes_its_gpu_and_no_tokens_of_an_api() -> None:
    (local,) = (
        work for work in make_plan(profile("single_gpu"), {}).stages if work.stage == "synthesize"
    )
    assert (local.api, local.tokens) == ("", (0.0, 0.0))
    values = find_profile(ROOT, "single_gpu")
    teacher, vllm = values.value("synthesize"), values.value("serving")["vllm"]
    billions = 1.7  # the teacher is Qwen3-1.7B
    assert local.amounts["rollout_s"] == pytest.approx(
        teacher["questions"] * teacher["samples"] * billions
    )
    assert local.gpu_gib == pytest.approx(
        vllm["gpu_memory_utilization"] * values.value("requires")["gpu_memory_gib"]
    )


def test_rollouts_that_choose_sfts_checkpoint_are_counted_for_each_that_is_kept() -> None:
    plans = (make_plan(profile("tiny", choose_checkpoint__by=rule), {}) for rule in ("last", "dev"))
    last, dev = (
        next(work for work in plan.stages if work.stage == "choose_checkpoint").amounts
        for plan in plans
    )
    values = find_profile(ROOT, "tiny")
    questions = values.value("choose_checkpoint")["dev"]
    kept = values.value("sft")["kept_checkpoints"]
    assert (
        dev["rollout_s"] - last.get("rollout_s", 0)
        == kept * questions["questions"] * questions["samples"]
    )
    assert dev["serve_start_s"] == kept


def test_checkpoints_that_sft_leaves_to_choose_from_take_disk() -> None:
    def sft_gib(**changes: object) -> float:
        plan = make_plan(profile("gpu", **changes), {})
        return next(work.disk_gib for work in plan.stages if work.stage == "sft")

    # 36 layers of Qwen3-4B: hidden 2,560, queries 4,096, keys and values 1,024, MLP 9,728 wide
    widths = 2 * (2560 + 4096) + 2 * (2560 + 1024) + 3 * (2560 + 9728)
    adapter_bytes = 64 * 36 * widths * 4
    copies = 2
    values = find_profile(ROOT, "gpu").value("sft")
    assert values["lora_rank"] == 64
    checkpoints = values["kept_checkpoints"] + bool(values["eval_share"])
    expected = checkpoints * adapter_bytes * copies / 2**30
    assert sft_gib() == pytest.approx(expected, rel=0.01)
    fewer = sft_gib(sft__kept_checkpoints=values["kept_checkpoints"] - 1)
    assert sft_gib() - fewer == pytest.approx(adapter_bytes * copies / 2**30, rel=0.01)


def test_verl_shares_rollouts_updates_and_memory_among_its_gpus() -> None:
    def rl_of(**overrides: object) -> tuple[float, float, float]:
        plan = make_plan(profile("search_r1", **overrides), {})
        (work,) = (work for work in plan.stages if work.stage == "rl@base")
        return work.seconds(plan.slopes), work.gpu_gib, work.host_gib

    eight_s, eight_gib, eight_host_gib = rl_of()
    sixteen_s, sixteen_gib, _ = rl_of(rl__backend__verl__nodes=2)
    assert 0.5 < sixteen_s / eight_s < 0.6
    assert sixteen_gib <= eight_gib
    # 3 thousand million parameters of 12 bytes more each, on eight GPUs
    updating = {"rl__sampler__gpu_memory_utilization": 0.0}
    _, offloaded_gib, _ = rl_of(**updating)
    _, whole_gib, whole_host_gib = rl_of(
        **updating,
        rl__backend__verl__param_offload=False,
        rl__backend__verl__optimizer_offload=False,
    )
    assert whole_gib - offloaded_gib == pytest.approx(3e9 * (12 - 8) / 8 / 2**30)
    assert eight_host_gib - whole_host_gib == pytest.approx(3e9 * 16 / 2**30)


def test_larger_models_take_more_gpus_and_more_hours_and_ask_for_fewer_searches() -> None:
    small, medium, large, largest = verl_scales(profile("search_r1"), {}, [3, 7, 14, 72])
    assert (small.nodes, small.tensor_parallel) == (1, 1)
    assert largest.nodes > 1
    assert largest.tensor_parallel > 1
    # Two bytes a weight, of which half of the sampler's share may be taken
    assert 2 * 72e9 / 2**30 / largest.tensor_parallel < 0.5 * 0.6 * 79
    for scale in (small, medium, large, largest):
        assert scale.gpu_gib <= 79
        gpus = scale.nodes * scale.gpus_per_node
        # The slope is of a thousand million parameters on one GPU; 2.4 searches a rollout
        assert scale.queries_per_s == pytest.approx(2.4 * gpus / (0.018 * scale.billions))
    assert small.hours < medium.hours < large.hours
    assert small.queries_per_s > medium.queries_per_s > large.queries_per_s

    same = profile("search_r1", rl__backend__verl__nodes=2)
    (work,) = [work for work in make_plan(same, {}).stages if work.stage == "rl@base"]
    (alone,) = [
        work for work in make_plan(profile("search_r1"), {}).stages if work.stage == "rl@base"
    ]
    assert alone.host_gib - work.host_gib == pytest.approx(3e9 * 16 / 2 / 2**30)


@pytest.mark.parametrize(
    ("name", "sizes", "named"),
    [
        ("tiny", [3], "does not train by engine: verl"),
        ("search_r1", [50_000], "takes .* GiB of each GPU on 64 nodes"),
    ],
)
def test_a_size_that_fits_nowhere_is_named(name: str, sizes: list[float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        list(verl_scales(profile(name), {}, sizes))


def test_rollouts_that_take_no_time_search_for_nothing() -> None:
    [scale] = verl_scales(profile("search_r1"), {"rollout_s": 0}, [3])
    assert (scale.rollout_hours, scale.queries_per_s) == (0, 0)


@pytest.mark.parametrize("sizes", ["", "3,,7", "-1", "inf", "nan", "3B"])
def test_a_size_that_is_no_number_is_named(sizes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, ["plan", "search_r1", "--sizes", sizes])
    assert "is no size of a model" in str(result.exception)


def test_the_table_of_sizes_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    line = ["plan", "search_r1", "--sizes", "3,72"]
    text = CliRunner().invoke(app, line, catch_exceptions=False).output
    assert "72B" in text
    values = json.loads(CliRunner().invoke(app, [*line, "--json"], catch_exceptions=False).output)
    assert [value["billions"] for value in values] == [3, 72]


def test_a_profile_without_sft_plans_none() -> None:
    stages = set(seconds(make_plan(profile("search_r1"), {})))
    assert stages & {"synthesize", "filter", "sft", "merge", "unsloth_merge@base"} == set()


def test_a_half_of_an_index_that_is_not_built_takes_no_disk_and_no_encoding() -> None:
    def index_of(**changes: object) -> StageWork:
        return next(
            work
            for work in make_plan(profile("gpu", **changes), {}).stages
            if work.stage == "index"
        )

    both = index_of(index__corpus_only={})
    dense = index_of(index__corpus_only={"wiki": "dense"})
    bm25 = index_of(index__corpus_only={"wiki": "bm25"})
    passages = read_slopes().sizes.passages["wiki18"]
    copies = 2
    assert (both.disk_gib - dense.disk_gib) * 2**30 == pytest.approx(passages * 476 * copies)
    assert (both.disk_gib - bm25.disk_gib) * 2**30 == pytest.approx(passages * 1660 * copies)
    assert both.amounts["encode_passage_s"] - bm25.amounts["encode_passage_s"] == passages
    assert dense.amounts == both.amounts

    without_encoder = index_of(index__encoder=None, index__corpus_only={})
    assert (without_encoder.amounts["encode_passage_s"], without_encoder.gpu_gib) == (0, 0.0)


def test_the_price_is_that_of_the_model_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_MODEL", "qwen3-30b-a3b-instruct-2507")
    plan = make_plan(profile("own"), {})
    assert {work.api for work in plan.stages} == {"", "qwen3-30b-a3b-instruct-2507"}
    assert all(plan.cost(work) for work in plan.stages if work.api)


def test_a_price_that_nobody_stated_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    output = CliRunner().invoke(app, ["plan", "multihoprag"]).output
    assert "Price of $OPENAI_MODEL: not known." in output


def test_a_users_slope_is_taken_before_preflights_and_preflights_before_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = profile("gpu")
    monkeypatch.chdir(tmp_path)
    (tmp_path / gpu.work / "preflight").mkdir(parents=True)
    write_json(
        tmp_path / gpu.work / "preflight" / "slopes.json", {"rl_step_s": 50.0, "rollout_s": 0.5}
    )
    slopes = make_plan(gpu, {"rollout_s": 0.25}).slopes
    assert (slopes["rl_step_s"].value, slopes["rl_step_s"].source) == (
        50.0,
        "work/gpu/preflight/slopes.json",
    )
    assert (slopes["rollout_s"].value, slopes["rollout_s"].source) == (0.25, "--slope")
    with pytest.raises(UnknownNameError, match="slope 'rollouts'"):
        make_plan(gpu, {"rollouts": 1.0})
    write_json(tmp_path / gpu.work / "preflight" / "slopes.json", {"rl_step_s": "fast"})
    with pytest.raises(ArtifactError, match=r"slopes\.json"):
        make_plan(gpu, {})


def test_a_slower_machine_takes_longer_but_its_network_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make_plan(profile("tiny"), {})
    reference = plan.file.machines["laptop"].calibration_s or 0.0
    monkeypatch.setattr(slopes_module, "calibrate", lambda: 2 * reference)
    slow = make_plan(profile("tiny"), {}).slopes
    assert slow["rollout_s"].value == 2 * plan.slopes["rollout_s"].value
    assert slow["download_gb_s"] == plan.slopes["download_gb_s"]


def test_the_machine_is_the_smallest_with_the_gpu_that_is_required() -> None:
    file = read_slopes()
    assert [file.kind_for(memory) for memory in (0, 16, 24, 80, 141)] == [
        "laptop",
        "gpu_24gb",
        "gpu_24gb",
        "h100",
        "h100",
    ]
    big, small = (
        make_plan(profile("gpu", requires__gpu_memory_gib=gib), {}).slopes for gib in (80, 24)
    )
    assert small["sft_token_s"].value == 5 * big["sft_token_s"].value
    assert small["api_call_s"] == big["api_call_s"]


def test_a_plan_above_the_hours_of_its_profile_is_refused_with_its_longest_stages() -> None:
    gpu = profile("gpu", requires__max_hours=1)
    with pytest.raises(
        ConfigError,
        match=r"hours \(rl@\w+ [\d.]+, .*requires\.max_hours 1 in .*`deepsearch plan gpu`",
    ):
        require_hours(make_plan(gpu, {}), gpu)
    for hours in (None, 1000):
        large = profile("gpu", requires__max_hours=hours)
        require_hours(make_plan(large, {}), large)


def test_a_profile_without_a_field_or_split_is_named() -> None:
    values = find_profile(ROOT, "tiny").values
    without = Profile(Path("params.yaml"), {**values, "rl": {"starts": ["sft"]}})
    with pytest.raises(ConfigError, match=r"params\.yaml has no field 'steps'"):
        make_plan(without, {})
    with pytest.raises(UnknownNameError, match=r"split 'vall'.*dev, train, val"):
        make_plan(profile("tiny", evaluate__split="vall"), {})


@pytest.mark.parametrize("name", profile_names(ROOT))
def test_profiles_fit_their_own_hours(name: str) -> None:
    require_hours(make_plan(profile(name), {}), profile(name))


def test_an_epoch_of_rl_fits_the_gpu_profiles_hours() -> None:
    gpu = profile(
        "gpu", rl__steps={start: 236 for start in find_profile(ROOT, "gpu").value("rl")["starts"]}
    )
    require_hours(make_plan(gpu, {}), gpu)


def test_json_has_every_stage_and_every_assumption() -> None:
    result = CliRunner().invoke(app, ["plan", "smoke", "--json", "--slope", "rollout_s=1"])
    values = json.loads(result.output)
    share = values["slopes"]["side_by_side"]["value"]
    assert share * sum(stage["seconds"] for stage in values["stages"]) == pytest.approx(
        values["hours"] * 3600
    )
    assert values["slopes"]["rollout_s"] == {"value": 1.0, "fixed": False, "source": "--slope"}
    refused = CliRunner().invoke(app, ["plan", "smoke", "--slope", "rollout_s"])
    assert isinstance(refused.exception, ConfigError)


@pytest.mark.parametrize("value", ["-5", "nan", "inf"])
def test_a_slope_below_nothing_or_without_an_end_is_refused(value: str) -> None:
    refused = CliRunner().invoke(app, ["plan", "smoke", "--slope", f"copies={value}"])
    assert isinstance(refused.exception, ConfigError)
    assert f"--slope copies={value}: a slope is a number of 0 or more" in str(refused.exception)


def test_a_plan_without_the_address_of_its_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    changed = profile("multihoprag", models={"api": "profiles/mine/models/api"})
    monkeypatch.setattr("deepsearch_rl.cli.plan.find_profile", lambda *_: changed)
    result = CliRunner().invoke(app, ["plan", "multihoprag"])
    assert result.exit_code == 0
    assert result.stderr.startswith("Missing: profiles/mine/models/api (of models.api), which no")
