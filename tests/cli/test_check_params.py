"""Params that contradict themselves: one sentence with the field, before anything runs."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepsearch_rl.cli.check_params import check
from deepsearch_rl.cli.doctor import missing_for_profile, read_machine
from deepsearch_rl.cli.plan import plan_command
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import Profile, find_profile, profile_names
from tests.conftest import ROOT

TINY = yaml.safe_load((ROOT / "params.yaml").read_text())
VARIANT = TINY["evaluate"]["variants"]["eight_samples"]
FOLDER_SOURCE = {
    "source": "folder",
    "path": "src",
    "folder": {
        "root": "data",
        "corpora": {"wiki": {"format": "jsonl", "path": "wiki.jsonl"}},
        "questions": {
            "hotpotqa": [
                {"format": "jsonl", "path": "q", "shuffle_seed": None, "splits": {"val": 9}}
            ]
        },
    },
}


def changed(field: str, value: Any) -> Profile:
    """The params of tiny with another value for a field, which may be new."""
    values = copy.deepcopy(TINY)
    *path, last = field.split("/")
    section = values
    for key in path:
        section = section[key]
    section[last] = value
    return Profile(Path("params.yaml"), values)


def test_questions_that_are_made_are_enough_for_rl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    profile = find_profile(ROOT, "own_gpu")
    check(profile)
    with pytest.raises(
        ConfigError, match=r"make_questions\.min_train: 500 is less than the 750 questions .*to 750"
    ):
        check(profile.with_overrides({"rl.steps.sft": 300}))


@pytest.mark.parametrize("name", profile_names(ROOT))
def test_the_params_of_every_profile_fit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    check(find_profile(ROOT, name))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        # Wrong types, unknown keys at every depth
        ("agents", {"max_tokens": 9}, r"unknown section .*'agents'. Did you mean 'agent'"),
        ("seed", "one", r"params.yaml, seed: 'one' is no whole number"),
        ("seed", -1, r"seed: -1"),
        ("index/threads", 0, r"index\.threads: "),
        ("models/base", 3, r"models\.base"),
        ("python/core", None, r"python\.core"),
        ("requires/memory_gb", 6, r"requires\.memory_gb: Extra inputs"),
        ("requires/max_hours", 0, r"requires\.max_hours: .*greater than 0"),
        ("agent/max_token", 9, r"agent\.max_token: Extra inputs"),
        ("agent/max_turns", "many", r"agent\.max_turns: .*integer.*given: 'many'"),
        ("rl/loss/klpenalty", 0.1, r"rl\.loss\.klpenalty: Extra inputs"),
        ("rl/sampler/slot", 3, r"rl\.sampler\.slot: Extra inputs"),
        ("index/quality/cutoff", [1], r"index\.quality\.cutoff: Extra inputs"),
        ("download/world/question", {}, r"download\.world\.question: Extra inputs"),
        ("datasets/musique/corpora", "world", r"datasets\.musique\.corpora: Extra inputs"),
        ("evaluate/sets/musique/sample", 1, r"evaluate\.sets\.musique\.sample: Extra inputs"),
        # Numbers out of range
        ("sft/learning_rate", -1e-3, r"sft\.learning_rate: .*greater than 0"),
        ("sft/learning_rate", float("nan"), r"sft\.learning_rate: nan is no number"),
        ("rl/learning_rate", float("inf"), r"rl\.learning_rate: inf is no number"),
        ("rl/group_size", 1, r"rl\.group_size: .*greater than or equal to 2"),
        ("evaluate/temperature", -0.1, r"evaluate\.temperature: .*greater than or equal to 0"),
        ("chunk/overlap", 28, r"chunk: .*overlap 28 must be below chunk_size 28"),
        # Names that do not exist
        ("index/encoder/name", "tfidf", r"index\.encoder.*'tfidf'.*tfidf_svd"),
        ("filter/predicates", ["answred"], r"section filter: unknown filter predicate 'answred'.*'answered'"),
        ("rl/rewards", {"f_1": 1.0}, r"section rl: unknown reward 'f_1'.*'f1'"),
        ("retrieval/retriever", "bm52", r"section retrieval: .*'bm52'.*'bm25'"),
        ("agent/protocol", "tags", r"agent\.protocol.*'tags'.*search_tags"),
        ("sft/model_type", "qwen_3", r"sft\.model_type: .*no model type 'qwen_3'; the nearest.*qwen3"),
        ("filter/template", "qwen3nothinking", r"filter\.template: .*nearest are qwen3_nothinking"),
        ("merge/template", "qwen3nothink", r"merge\.template: .*nearest are qwen3_nothinking"),
        ("evaluate/sets/musik", TINY["evaluate"]["sets"]["musique"], r"evaluate\.sets: .*'musik'.*'musique'"),
        ("evaluate/split", "test", r"evaluate\.sets .*unknown split of this set 'test'.*val"),
        ("evaluate/variants/more", {**VARIANT, "dataset": "musiq"}, r"evaluate.*'musiq'.*'musique'"),
        ("evaluate/variants/more", {**VARIANT, "models": ["stf"]}, r"variants\.more\.models: .*'stf'.*'sft'"),
        ("evaluate/variants/more", {**VARIANT, "corpus": "word"}, r"variants\.more\.corpus: .*'word'.*'world'"),
        ("evaluate/variants/more", {**VARIANT, "prompt": "own/p.txt"}, r"more\.prompt: there is no file own/p.txt"),
        ("report/comparisons", [["sft", "bas"]], r"report\.comparisons: unknown model 'bas'.*'base'"),
        ("rl/starts", ["sfft"], r"rl\.starts: .*'sfft'.*'sft'"),
        ("rl/steps", {"base": 1}, r"rl\.steps: there is no entry for the start sft; add one"),
        ("rl/dataset", "musique", r"rl \(musique\): unknown split of this set 'train'"),
        ("synthesize/dataset", "hotpot", r"synthesize\.dataset: unknown dataset 'hotpot'.*'hotpotqa'"),
        ("synthesize/split", "trian", r"synthesize \(multihoprag\): .*'trian'.*'train'"),
        ("synthesize/teacher", "models/tiny/teacher", r"synthesize\.teacher: no stage makes models/tiny/teacher"),
        ("models/rl", "models/tiny/rl_merged/base", r"models\.rl: no stage makes"),
        ("model_settings/sfft", {}, r"unknown model in model_settings 'sfft'"),
        ("model_settings/sft", {"agent": {"max_turn": 3}}, r"model_settings\.sft: .*agent\.max_turn"),
        ("evaluate/agent", {"max_turn": 3}, r"section evaluate: .*agent\.max_turn"),
        ("datasets/musique/corpus", "outword", r"datasets\.musique\.corpus: .*'outword'.*'outworld'"),
        ("retrieval/dataset_retrievers", {"nq": "bm25"}, r"retrieval\.dataset_retrievers: .*'nq'"),
        ("index/corpus_only", {"wiki": "bm25"}, r"index\.corpus_only: unknown corpus 'wiki'"),
        ("agent/prompt", "own/prompt.txt", r"agent\.prompt: there is no file own/prompt.txt"),
        ("prepare_model/source", "hub", r"prepare_model: .*needs prepare_model\.hub"),
        # Contradictions of sections
        ("download", FOLDER_SOURCE, r"datasets\.\w+\.corpus: unknown corpus '\w*world'"),
        ("agent/max_tokens", 1024, r"agent: .*leaves no room"),
        ("agent/context_tokens", 1025, r"agent\.context_tokens: 1025 is more than serving\.cpu\.context_tokens: 1024"),
        ("evaluate/agent", {"context_tokens": 2048}, r"context_tokens: 2048 is more than serving"),
        ("serving/backend", "vllm", r"serving\.backend: vllm has no section serving\.vllm"),
        ("rl/max_sequence_tokens", 512, r"rl\.max_sequence_tokens: 512 is less than agent\.context_tokens: 1024"),
        ("filter/max_tokens", 1025, r"filter\.max_tokens: 1025 is more than sft\.max_length: 1024"),
        ("sft/max_length", 4096, r"sft\.max_length: 4096 is more than prepare_model\.pretrain\.model\.context_tokens"),
        ("filter/template", "qwen3", r"filter\.template: qwen3 is not sft\.template: qwen3_nothinking"),
        ("merge/template", "qwen3", r"merge\.template: qwen3 is not sft\.template: qwen3_nothinking"),
        ("filter/split", "dev", r"filter\.split: dev is not synthesize\.split: train"),
        ("choose_checkpoint/by", "loss", r"choose_checkpoint\.by: .*sft\.eval_share above 0"),
        ("sft/packing", True, r"sft: .*packing needs flash attention"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence_with_its_field(
    field: str, value: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=message) as raised:
        check(changed(field, value))
    assert "\n" not in str(raised.value)


def test_a_model_in_a_folder_is_read_for_its_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    source = {"source": "folder", "path": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"agent\.context_tokens is 1024, and .* at most 512"):
        check(changed("prepare_model", source))


def test_greedy_answers_alone_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    check(changed("evaluate/temperature", 0.0))


def test_doctor_and_plan_say_the_same_as_make_params(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "src").symlink_to(ROOT / "src")
    monkeypatch.chdir(tmp_path)
    params = Path("params.yaml")
    params.write_text(
        params.read_text().replace("comparisons: [[sft, base]", "comparisons: [[stf, base]")
    )
    profile = find_profile(Path(), "tiny")
    needs = missing_for_profile(Path(), profile, read_machine(Path()))
    assert [(need.what, need.fix) for need in needs] == [
        (
            "params.yaml, report.comparisons: unknown model 'stf'. Did you mean 'sft'? "
            "Valid names: base, sft, sft_rl.",
            "edit params.yaml and run `make params`",
        )
    ]
    with pytest.raises(ConfigError, match="unknown model 'stf'"):
        plan_command("tiny", None, False)
