"""Every profile's params.yaml fits the stages that read it, and the gpu profile keeps the published settings."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.utils.hydra import apply_overrides
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.evaluate.evaluation_plan import Evaluation
from deepsearch_rl.search.build import IndexSection
from deepsearch_rl.serve.launch import ServingConfig
from deepsearch_rl.train.art.backend import train_arguments
from deepsearch_rl.train.filters import FilterConfig
from deepsearch_rl.train.prepare_model import PrepareModelConfig
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.sft import SftConfig
from deepsearch_rl.train.verl.overrides import require_honoured
from tools.departures import read_published

ROOT = Path(__file__).resolve().parents[2]
PROFILES = {
    "tiny": ROOT / "params.yaml",
    "smoke": ROOT / "profiles/smoke/params.yaml",
    "gpu": ROOT / "profiles/gpu/params.yaml",
    "multihoprag": ROOT / "profiles/multihoprag/params.yaml",
    "own": ROOT / "profiles/own/params.yaml",
    "own_gpu": ROOT / "profiles/own_gpu/params.yaml",
    "single_gpu": ROOT / "profiles/single_gpu/params.yaml",
    "thinking": ROOT / "profiles/thinking/params.yaml",
    "search_r1": ROOT / "profiles/search_r1/params.yaml",
    "smollm": ROOT / "profiles/smollm/params.yaml",
    "smollm_gpu": ROOT / "profiles/smollm_gpu/params.yaml",
}
GPU_PROFILES = [
    name
    for name, path in PROFILES.items()
    if load_profile(path).value("requires")["gpu_memory_gib"]
]

# The others search by BM25 alone
ENCODED = [
    name
    for name in GPU_PROFILES
    if "model" in load_profile(PROFILES[name]).value("index")["encoder"]
]

SEARCH_R1_SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


def test_paths_in_params_lie_in_the_profiles_own_folders() -> None:
    for name, path in PROFILES.items():
        params = yaml.safe_load(path.read_text())
        assert params["profile"] == name
        assert all(folder.startswith(f"models/{name}/") for folder in params["models"].values())


def test_doctor_asks_for_the_variables_of_endpoints() -> None:
    for path in PROFILES.values():
        params = load_profile(path)
        for endpoint in params.values.get("endpoints", {}).values():
            named = [
                value[1:]
                for value in (endpoint["base_url"], endpoint["model"])
                if value.startswith("$")
            ]
            keys = params.value("requires")["keys"]
            assert {endpoint["api_key_variable"], *named} <= set(keys)


@pytest.fixture
def gpu() -> dict[str, Any]:
    return yaml.safe_load(PROFILES["gpu"].read_text())


@pytest.mark.parametrize("profile", ENCODED)
def test_chunks_are_counted_and_encoded_with_one_revision_of_one_model(profile: str) -> None:
    params = load_profile(PROFILES[profile])
    encoder = params.value("index")["encoder"]
    assert params.value("chunk")["tokenizer"] == f"hf:{encoder['model']}@{encoder['revision']}"
    assert (encoder["query_prefix"], encoder["passage_prefix"]) == ("query: ", "passage: ")


def test_the_gpu_profile_keeps_the_published_reinforcement_settings(gpu: dict[str, Any]) -> None:
    """The figures are those of docs/contracts.md, section 5."""
    config = RlConfig.model_validate(gpu["rl"])
    arguments = train_arguments(config)
    assert arguments["importance_sampling_level"] == "sequence"
    assert (arguments["epsilon"], arguments["epsilon_high"]) == (3e-4, 4e-4)
    assert arguments["truncated_importance_sampling"] == 2.0
    assert arguments["learning_rate"] == 3e-5
    assert (config.group_size, config.groups_per_step, config.temperature) == (8, 10, 1.0)
    assert (config.rewards, config.minibatches, config.sampler.gpu_memory_utilization) == (
        {"f1": 2.0},
        None,
        0.6,
    )
    assert (arguments["logprob_calculation_chunk_size"], arguments["packed_sequence_length"]) == (
        1024,
        8192,
    )
    assert gpu["agent"]["max_tokens"] == 3072


@pytest.mark.parametrize("profile", [*GPU_PROFILES, "tiny", "smoke"])
def test_rl_sees_no_question_more_often_than_its_epochs_say(profile: str) -> None:
    params = yaml.safe_load(PROFILES[profile].read_text())
    config, download = RlConfig.model_validate(params["rl"]), params["download"]
    if download["source"] == "world":
        questions = download["world"]["questions"]["train"]
    elif made := params.get("make_questions", {}).get("documents"):
        assert list(made) == [config.dataset]
        questions = (
            params["make_questions"]["questions"] * params["make_questions"]["splits"]["train"]
        )
    else:
        sources = download["folder"]["questions"][config.dataset]
        counts = [source["splits"].get("train", 0) for source in sources]
        rest = read_published().train_questions - sources[0]["splits"].get("dev", 0)
        questions = sum(rest if count is None else count for count in counts)
    for start in config.starts:
        assert config.steps[start] * config.groups_per_step <= config.epochs * questions


@pytest.mark.parametrize("profile", GPU_PROFILES)
def test_models_are_served_with_room_for_every_request_of_the_agent(profile: str) -> None:
    params = load_profile(PROFILES[profile])
    setting, rl = Evaluation.of(params), params.section("rl", RlConfig)
    assert setting.serving.vllm is not None
    assert setting.serving.vllm.max_model_len >= setting.agent.context_tokens
    assert rl.max_sequence_tokens >= params.section("agent", AgentConfig).context_tokens


@pytest.mark.parametrize("profile", ["single_gpu", "thinking"])
def test_a_model_that_thinks_is_trained_on_the_prompts_that_it_is_served(profile: str) -> None:
    params = load_profile(PROFILES[profile])
    filtered, tuned = params.section("filter", FilterConfig), params.section("sft", SftConfig)
    assert params.section("agent", AgentConfig).history_reasoning is not filtered.flatten
    assert "reasoned" in filtered.predicates
    assert (filtered.template, filtered.loss_scale) == (tuned.template, tuned.loss_scale)
    serving = params.section("serving", ServingConfig).vllm
    assert serving is not None
    assert serving.reasoning_parser == "qwen3"


def test_a_model_of_the_thinking_profile_that_does_not_think_has_its_own_prompt() -> None:
    profile = load_profile(PROFILES["thinking"])
    own = profile.value("model_settings")
    assert own.keys() <= profile.value("models").keys()
    thinks, instructed = (
        Evaluation.of(profile.with_values(own.get(name, {}))).agent for name in ("base", "instruct")
    )
    assert (thinks.prompt_title, thinks.history_reasoning) == ("multihoprag_thinking", True)
    assert (instructed.prompt_title, instructed.history_reasoning) == ("multihoprag_nothink", False)


@pytest.mark.slow
def test_the_options_in_the_thinking_profiles_readme_fit_the_stages(tmp_path: Path) -> None:
    readme = (PROFILES["thinking"].parent / "README.md").read_text()
    runs = [
        re.findall(r"-S '[\w/]+\.yaml:([^']+)'", line)
        for line in readme.splitlines()
        if line.startswith("|")
    ]
    short, longer, flat, other = filter(None, runs)
    for options in (short, [*short, *longer], flat, other):
        changed = tmp_path / "params.yaml"
        changed.write_text(PROFILES["thinking"].read_text())
        apply_overrides(str(changed), options)
        params = load_profile(changed)
        rl, filtered = params.section("rl", RlConfig), params.section("filter", FilterConfig)
        params.section("prepare_model", PrepareModelConfig)
        assert params.section("sft", SftConfig).loss_scale == filtered.loss_scale
        assert (rl.rewards == {"f1": 2.0, "short_think": 0.5, "answer_format": 0.5}) is (
            options[: len(short)] == short
        )


def test_the_gpu_profiles_readme_names_the_interpreter_of_every_stage() -> None:
    graph = yaml.safe_load((PROFILES["gpu"].parent / "dvc.yaml").read_text())["stages"]
    families: dict[str, set[str]] = {}
    for stage, entry in graph.items():
        [family] = re.findall(r"\$\{python\.(\w+)\}", entry.get("do", entry)["cmd"])
        families.setdefault(family, set()).add(stage)

    readme = (PROFILES["gpu"].parent / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([a-z_, ]+) \|", readme, re.MULTILINE)
    assert {family: set(stages.split(", ")) for family, stages in rows} == families


def test_the_search_r1_profile_keeps_the_published_settings_and_verl_honours_them() -> None:
    """The figures are those of the paper and of its repository's train_grpo.sh."""
    params = load_profile(PROFILES["search_r1"])
    config = params.section("rl", RlConfig)
    verl = require_honoured(config)
    assert (config.groups_per_step, config.group_size, config.minibatches) == (512, 5, 2)
    assert (config.learning_rate, config.optimizer.warmup_steps) == (1e-6, round(0.285 * 500))
    assert (config.loss.kl_loss, config.loss.epsilon, config.rewards) == (
        0.001,
        0.2,
        {"exact_match": 1.0},
    )
    assert (config.lora, verl.critic, config.temperature) == (None, None, 1.0)
    agent = params.section("agent", AgentConfig)
    assert (agent.max_tokens, agent.max_observation_tokens, agent.max_searches) == (500, 500, 4)
    assert params.value("retrieval")["top_k"] == 3
    assert list(params.value("evaluate")["sets"]) == [*SEARCH_R1_SETS]


@pytest.mark.slow
def test_the_variants_in_the_search_r1_profiles_readme_fit_the_stages(tmp_path: Path) -> None:
    readme = (PROFILES["search_r1"].parent / "README.md").read_text()
    variants = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
    assert len(variants) == 3
    for variant in variants:
        values = yaml.safe_load(PROFILES["search_r1"].read_text())
        merge(values, yaml.safe_load(variant))
        changed = tmp_path / "params.yaml"
        changed.write_text(yaml.safe_dump(values))
        params = load_profile(changed)
        require_honoured(params.section("rl", RlConfig))
        params.section("index", IndexSection)
        params.section("prepare_model", PrepareModelConfig)


def merge(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """Change values in place, as a profile.yaml does."""
    for name, change in changes.items():
        if isinstance(change, dict) and isinstance(values.get(name), dict):
            merge(values[name], change)
        else:
            values[name] = change


@pytest.mark.parametrize("profile", GPU_PROFILES)
def test_a_corpus_of_paragraphs_is_not_cut_again(profile: str) -> None:
    params = load_profile(PROFILES[profile])
    folder = params.value("download")["folder"]
    corpora = folder["corpora"]
    # Articles, and the documents that make_questions read
    whole = ("multihoprag", "flashrag")
    paragraphs = [name for name, source in corpora.items() if source["format"] not in whole]
    assert sorted(params.value("chunk")["passages"]) == sorted(paragraphs)
    assert {each["corpus"] for each in params.value("datasets").values()} == {
        *corpora,
        *folder.get("paragraphs", {}),
    }


def extras() -> set[str]:
    """Packages that only a backend needs which no profile names; without them it says what to install."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    graph = {"all", *(part for line in extras["all"] for part in Requirement(line).extras)}
    return {
        canonicalize_name(Requirement(line).name)
        for extra in extras.keys() - graph
        for line in extras[extra]
    }


def stages_of(family: str) -> set[str]:
    """The stages that dvc.yaml runs with a family's interpreter."""
    return set(
        re.findall(rf"\$\{{python\.{family}\}} -m stages\.(\w+)", (ROOT / "dvc.yaml").read_text())
    )
