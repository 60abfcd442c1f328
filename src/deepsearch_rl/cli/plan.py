"""``deepsearch plan``: hours, disk, memory, tokens and price of a profile, stage by stage, before anything starts.

A stage's seconds are amounts times slopes: questions, tokens and steps come from the params, what one
of them takes from :data:`SLOPES`. Amounts are upper bounds: runs that stop early take less.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
import yaml
from typer import Option

from deepsearch_rl.agent.config import SCRIPTED
from deepsearch_rl.cli.shared import ProfileName, print_table
from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.profile import Profile, find_profile
from deepsearch_rl.server.requests import is_loopback

GIB = 2**30

# What one unit takes on two CPU cores with the tiny model, and on an H100. A name ends in its unit.
# `_s` are seconds of all workers together: a rollout that takes 6 s while 30 run at once is 0.2 s.
# Model work on a GPU is per thousand million parameters. CPU figures are from a run of `make repro`;
# the GPU's are measured where docs/gpu.md says so, otherwise estimates.
SLOPES: dict[str, tuple[float, float]] = {
    "side_by_side": (0.72, 1),  # time of a run by the sum of its stages
    "start_s": (1.7, 20),
    "serve_start_s": (4.6, 94),
    "merge_s": (14, 300),
    "adapter_merge_s": (6.3, 300),
    "swift_start_s": (11, 60),
    "download_gb_s": (100, 20),
    "index_passage_s": (0.0041, 0.00015),
    "encode_passage_s": (0, 0.00022),
    "pretrain_token_s": (7.8e-5, 1.3e-4),
    "scripted_rollout_s": (0.018, 0.01),
    "api_call_s": (2, 2),
    "filter_row_s": (0.0023, 0.05),
    "sft_token_s": (3.4e-4, 2.5e-5),
    "rollout_s": (0.057, 0.018),
    "rollout_eager_s": (0.045, 0.07),
    "rl_token_s": (7.5e-4, 8.8e-5),
    "verl_token_s": (3.9e-4, 3.3e-5),
    "rl_step_s": (0, 6),
    "ifeval_prompt_s": (0.061, 0.06),
    "report_rollout_s": (0.0018, 0.005),
    "row_tokens": (385, 2200),  # of a trajectory
    "success_share": (0.6, 0.64),  # of the teacher's rollouts
    "trained_share": (0.75, 0.75),  # of the groups: others have equal rewards
    "calls_per_rollout": (3.4, 3.4),
    "prompt_tokens": (4594, 4594),  # read per question, all rounds
    "completion_tokens": (132, 132),  # written per question
    "ifeval_tokens": (400, 400),
    "question_call_tokens": (600, 600),  # of a call of make_questions
    "passage_bytes": (3600, 3600),  # corpus, chunk, BM25 and vector of one passage
    "bm25_bytes": (476, 476),
    "vector_bytes": (1660, 1660),
    "index_memory_bytes": (200, 200),
    "rollout_bytes": (9000, 40_000),
    "adapter_bytes": (2.06e6, 2.06e6),  # LoRA in float32, per rank and thousand million parameters
    "copies": (2, 2),  # DVC's cache holds a second copy
    "process_gib": (1.5, 4),
    "training_gib": (2.5, 8),  # of host memory beside a model's weights
    "gpu_token_gib": (0, 0.0015),  # activations of a token in training
}
# An RTX 4090's bfloat16 against an H100's: 165 and 990 TFLOP/s; memory: 1.0 and 3.35 TB/s
SMALL_GPU_GIB = 24
SMALL_GPU_FACTOR = 5
# Not slower on a small GPU
FIXED_S = ("download_gb_s", "api_call_s")

# Of public files that a profile reads whole, by format
QUESTIONS = {"multihoprag": 2556, "musique": 2417, "2wikimultihopqa": 12576, "hotpotqa": 7405}
PASSAGES = {"multihoprag": 9000, "wiki18": 21_015_324}
OTHER_PASSAGES = 20_000
DOWNLOAD_GB = {"multihoprag": 0.02, "wiki18": 4.7, "flashrag": 0.1, "ifeval": 0.001}
IFEVAL_PROMPTS = 541
# USD per million tokens read and written. Alibaba Cloud Model Studio, international list.
PRICES = {"qwen3-30b-a3b-instruct-2507": (0.20, 0.80)}

# Bytes of a trained parameter in float32: the weight, its gradient, and two moments of the optimizer
WEIGHT_BYTES = 4
MOMENTS_BYTES = 8
TRAINED_BYTES = WEIGHT_BYTES + 4 + MOMENTS_BYTES
# Of the tokens of make_questions, those that the model writes
WRITTEN_SHARE = 0.1
_BILLIONS = re.compile(r"(\d+(?:\.\d+)?)B\b")


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a stage takes: the disk that it adds, the most memory that it holds (of one GPU), an API's tokens.

    ``tokens`` are those that the model ``api`` reads and writes; ``price_usd`` is None if its price is not known.
    """

    stage: str
    seconds: float
    disk_gib: float
    host_gib: float
    gpu_gib: float
    api: str
    tokens: tuple[float, float]
    price_usd: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages of a profile in the order of its dvc.yaml, and the slopes that their time comes from."""

    profile: str
    stages: tuple[StagePlan, ...]
    slopes: Mapping[str, float]

    @property
    def hours(self) -> float:
        """The time of a run: of all stages together, less what is saved where two run side by side."""
        return self.slopes["side_by_side"] * sum(stage.seconds for stage in self.stages) / 3600


def plan_command(
    profile: ProfileName = "tiny",
    slope: Annotated[
        list[str] | None, Option(help="`name=value` in place of an assumption; may be repeated.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a run of a profile takes, stage by stage: time, disk, memory, an API's tokens and their price.

    The figures are estimates from the sizes in params.yaml and a table of slopes in cli/plan.py.
    Every stage is counted, even if it is up to date.

        deepsearch plan gpu --slope rollout_eager_s=0.05
    """
    given: dict[str, float] = {}
    for text in slope or ():
        name, _, number = text.partition("=")
        try:
            given[name] = float(number)
        except ValueError as error:
            raise ConfigError(
                f"--slope {text!r} should be name=value, e.g. rollout_s=0.05."
            ) from error

    # It loads the config classes of all stages
    from deepsearch_rl.cli.check_params import check  # noqa: PLC0415

    found = find_profile(Path(), profile)
    check(found)
    plan = make_plan(found, given)
    if as_json:
        typer.echo(json.dumps({**asdict(plan), "hours": plan.hours}, indent=2))
    else:
        _show(plan)


def make_plan(profile: Profile, given: Mapping[str, float]) -> Plan:
    """Return the plan of a profile, with the values of slopes that are ``given``.

    Raise ConfigError where the profile lacks a field, UnknownNameError for a slope, split or set that
    does not exist.
    """
    slopes = _slopes(profile, given)
    sizes = _Sizes(profile, slopes)
    stages: list[StagePlan] = []
    graph = yaml.safe_load(profile.path.with_name("dvc.yaml").read_text(encoding="utf-8"))
    for name in graph["stages"]:
        try:
            works = _work(sizes, name).items() if name != "endpoint" else ()
            for item, work in works:
                stages.append(replace(work, stage=f"{name}@{item}" if item else name))
        except KeyError as error:
            raise ConfigError(
                f"{profile.path} has no field {error}, which the plan of {name} needs; run `make params`."
            ) from error

    return Plan(profile.name, tuple(stages), slopes)


def _slopes(profile: Profile, given: Mapping[str, float]) -> dict[str, float]:
    gpu_gib = profile.value("requires")["gpu_memory_gib"]
    slopes: dict[str, float] = {}
    for name, (cpu, gpu) in SLOPES.items():
        is_slower = 0 < gpu_gib <= SMALL_GPU_GIB and name.endswith("_s") and name not in FIXED_S
        slopes[name] = (gpu if gpu_gib else cpu) * (SMALL_GPU_FACTOR if is_slower else 1)

    for name in given:
        look_up("slope", name, SLOPES)
    return {**slopes, **given}


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What a profile works on: questions, passages, parameters, bytes."""

    profile: Profile
    slopes: Mapping[str, float]

    @property
    def values(self) -> Mapping[str, Any]:
        """The params."""
        return self.profile.values

    def questions(self, dataset: str, split: str, limit: int | None) -> int:
        """Return how many questions of a split of a set are used: all, or at most ``limit``."""
        download = self.values["download"]
        if download["source"] == "world":
            world = download["world"]
            count = world["out_of_domain_questions"]
            if dataset == self.values.get("synthesize", {}).get("dataset", dataset):
                count = look_up("split", split, world["questions"])
        elif "/made/" in download["path"]:
            made = self.values["make_questions"]
            count = round(made["questions"] * look_up("split", split, made["splits"]))
        else:
            sources = look_up("question set", dataset, download["folder"]["questions"])
            count = sum(
                _split_size(source, split) for source in sources if split in source["splits"]
            )

        return count if limit is None else min(count, limit)

    @property
    def passages(self) -> dict[str, int]:
        """The number of passages of every corpus."""
        download = self.values["download"]
        if download["source"] == "world":
            world = download["world"]
            in_domain = sum(world["in_domain"].values())
            return {"world": in_domain, "outworld": sum(world["out_of_domain"].values())}
        corpora = download["folder"]["corpora"].items()
        return {name: PASSAGES.get(corpus["format"], OTHER_PASSAGES) for name, corpus in corpora}

    @property
    def documents_gib(self) -> float:
        """Disk of all documents; their chunks take as much, and the index three times that."""
        return self.disk_gib(sum(self.passages.values()) * self.slopes["passage_bytes"]) / 5

    @property
    def billions(self) -> float:
        """Thousand million parameters of the base model, by its name; 0 of a model that is trained here."""
        hub = self.values.get("prepare_model", {}).get("hub")
        name = _BILLIONS.search(hub["repository"]) if hub else None
        return float(name[1]) if name else 0.0

    @property
    def size(self) -> float:
        """What slopes of model work are multiplied by."""
        return self.billions or 1.0

    @property
    def weights_gib(self) -> float:
        """The weights of the base model in 16 bits."""
        return 2e9 * self.billions / GIB

    @property
    def training_gib(self) -> float:
        """Host memory of a training process."""
        return self.weights_gib + self.slopes["training_gib"]

    def update_gib(self, tokens: int) -> float:
        """Return the GPU memory of an update of so many tokens, without the optimizer of an adapter."""
        return self.weights_gib + tokens * self.slopes["gpu_token_gib"]

    def plan(
        self,
        amounts: Mapping[str, float],
        rollouts: float = 0,
        *,
        disk_gib: float = 0.0,
        host_gib: float = 0.0,
        gpu_gib: float = 0.0,
        api: str = "",
        tokens: tuple[float, float] = (0.0, 0.0),
    ) -> StagePlan:
        """Return the plan of a stage without its name; its time is made of so much of each slope."""
        slopes = self.slopes
        seconds = sum(amount * slopes[name] for name, amount in amounts.items())
        prices = PRICES.get(api) if api else (0.0, 0.0)
        price = (tokens[0] * prices[0] + tokens[1] * prices[1]) / 1e6 if prices else None
        return StagePlan(
            stage="",
            seconds=slopes["start_s"] + seconds,
            disk_gib=disk_gib + rollouts * slopes["rollout_bytes"] * slopes["copies"] / GIB,
            host_gib=host_gib + slopes["process_gib"],
            gpu_gib=gpu_gib,
            api=api,
            tokens=tokens,
            price_usd=price,
        )

    def disk_gib(self, size_bytes: float) -> float:
        """Return what artifacts take on disk, with DVC's copies."""
        return size_bytes * self.slopes["copies"] / GIB


def _split_size(source: Mapping[str, Any], split: str) -> int:
    """Return the questions that a file gives a split: as many as it says, or what the others leave."""
    cut = sum(count for count in source["splits"].values() if count)
    return source["splits"][split] or QUESTIONS.get(source["format"], 2 * cut) - cut


def _work(sizes: _Sizes, stage: str) -> dict[str, StagePlan]:
    """Return the plan of a stage by its items; a stage without items has the empty name."""
    values = sizes.values
    models = values["models"]
    match stage:
        case "evaluate":
            return {
                name: _answers(sizes, path, _rollouts(sizes, name)) for name, path in models.items()
            }
        case "ifeval":
            section = values["ifeval"]
            count = IFEVAL_PROMPTS if section["prompts"] == "real" else section["count"]
            return {name: _answers(sizes, path, count, True) for name, path in models.items()}
        case "optimize_prompt":
            section = values[stage]
            named = section["models"].items()
            return {name: _answers(sizes, path, section["rollouts"]) for name, path in named}
        case "make_questions":
            return dict.fromkeys(values[stage]["documents"], _question_writing(sizes))
        case "rl":
            return {start: _rl(sizes, start) for start in values["rl"]["starts"]}
        case "unsloth_merge":
            return dict.fromkeys(values["rl"]["starts"], _merge(sizes, "adapter_merge_s"))
        case "filter":
            rollouts = _teacher_rollouts(sizes)
            return {"": sizes.plan({"filter_row_s": rollouts}, rollouts)}
        case "report" | "track":
            rollouts = sum(_rollouts(sizes, model) for model in models)
            return {"": sizes.plan({"report_rollout_s": rollouts})}
        case "merge":
            return {"": _merge(sizes, "merge_s")}
        case _:
            return {"": SINGLE[stage](sizes) if stage in SINGLE else sizes.plan({})}


def _answers(sizes: _Sizes, folder: str, count: int, is_ifeval: bool = False) -> StagePlan:
    """Return the work of so many rollouts, or prompts of IFEval, by a model of this machine or of an API."""
    endpoint = Path(folder, "endpoint.json")
    server = read_json(endpoint) if endpoint.is_file() else _named_endpoint(sizes, folder)
    if not server or is_loopback(urlsplit(server["base_url"]).hostname or ""):
        slope = "ifeval_prompt_s" if is_ifeval else _rollout_slope(_vllm(sizes))
        work = {"serve_start_s": 1, slope: count * sizes.size}
        # vLLM takes its share of a GPU at once
        share = _vllm(sizes).get("gpu_memory_utilization", 0.0)
        gpu_gib = share * sizes.values["requires"]["gpu_memory_gib"]
        rollouts = 0 if is_ifeval else count
        return sizes.plan(work, rollouts, host_gib=sizes.weights_gib, gpu_gib=gpu_gib)

    slopes = sizes.slopes
    model = _model_name(server)
    if is_ifeval:
        calls = count / sizes.values["ifeval"]["concurrency"]
        return sizes.plan(
            {"api_call_s": calls}, api=model, tokens=(0, count * slopes["ifeval_tokens"])
        )

    calls = count * slopes["calls_per_rollout"] / sizes.values["agent"]["concurrency"]
    tokens = (count * slopes["prompt_tokens"], count * slopes["completion_tokens"])
    return sizes.plan({"api_call_s": calls}, count, api=model, tokens=tokens)


def _named_endpoint(sizes: _Sizes, folder: str) -> Mapping[str, str] | None:
    """Return the entry of section ``endpoints`` that a model's folder is made of."""
    endpoints = sizes.values.get("endpoints", {})
    name = Path(folder).name
    return endpoints.get(name) if Path(folder).parent == sizes.profile.models else None


def _model_name(server: Mapping[str, str]) -> str:
    """Return the model of an endpoint, read from the environment where it names a $VARIABLE."""
    model = server["model"]
    return os.environ.get(model[1:]) or model if model.startswith("$") else model


def _vllm(sizes: _Sizes) -> Mapping[str, Any]:
    return sizes.values.get("serving", {}).get("vllm") or {}


def _rollout_slope(server: Mapping[str, Any]) -> str:
    return "rollout_eager_s" if server.get("enforce_eager") else "rollout_s"


def _rollouts(sizes: _Sizes, model: str) -> int:
    """Return the rollouts of one model's evaluation: samples, greedy answers, controls and variants."""
    section = sizes.values["evaluate"]
    rollouts = 0
    for name, plan in section["sets"].items():
        count = sizes.questions(name, section["split"], plan["questions"])
        # Without search, with the gold passages, and with random ones where these are asked for
        controls = 3 if section["random_passages"] else 2
        sampled = count * plan["samples"] + min(count, plan["greedy"])
        rollouts += sampled if section["temperature"] else count
        rollouts += controls * min(count, plan["controls"])

    for variant in section["variants"].values():
        if variant["models"] is None or model in variant["models"]:
            count = sizes.questions(variant["dataset"], section["split"], variant["questions"])
            rollouts += count * (variant["samples"] if section["temperature"] else 1)

    return rollouts


def _question_writing(sizes: _Sizes) -> StagePlan:
    """Return the writing of questions about a folder of documents, as if the whole budget were spent."""
    section = sizes.values["make_questions"]
    writer = section["writer"]
    tokens = section["budget_tokens"]
    calls = tokens / sizes.slopes["question_call_tokens"] / writer["concurrency"]
    server = _named_endpoint(sizes, writer["endpoint"]) or {"model": writer["endpoint"]}
    model = _model_name(server)
    split = (tokens * (1 - WRITTEN_SHARE), tokens * WRITTEN_SHARE)
    return sizes.plan({"api_call_s": calls}, api=model, tokens=split)


def _download(sizes: _Sizes) -> StagePlan:
    hub = sizes.values["download"].get("hub")
    names = hub["repositories"] if hub else ()
    gigabytes = sum(DOWNLOAD_GB.get(name, 0.1) for name in names)
    return sizes.plan({"download_gb_s": gigabytes}, disk_gib=gigabytes + sizes.documents_gib)


def _chunk(sizes: _Sizes) -> StagePlan:
    return sizes.plan({}, disk_gib=sizes.documents_gib)


def _index(sizes: _Sizes) -> StagePlan:
    slopes = sizes.slopes
    passages = sum(sizes.passages.values())
    index = sizes.values["index"]
    encoder = index["encoder"]
    halves = index["corpus_only"]
    without_bm25 = 0
    without_vectors = 0
    for corpus, count in sizes.passages.items():
        without_bm25 += count if index["bm25"] is None or halves.get(corpus) == "dense" else 0
        without_vectors += count if encoder is None or halves.get(corpus) == "bm25" else 0

    missing = without_bm25 * slopes["bm25_bytes"] + without_vectors * slopes["vector_bytes"]
    is_transformer = encoder is not None and "model" in encoder
    encoded = passages - without_vectors if is_transformer else 0
    return sizes.plan(
        {"index_passage_s": passages, "encode_passage_s": encoded},
        disk_gib=3 * sizes.documents_gib - sizes.disk_gib(missing),
        host_gib=passages * slopes["index_memory_bytes"] / GIB,
        gpu_gib=slopes["process_gib"] if encoded else 0.0,
    )


def _base_model(sizes: _Sizes) -> StagePlan:
    pretrain = sizes.values["prepare_model"].get("pretrain")
    tokens = sum(level["tokens"] for level in pretrain["curriculum"]) if pretrain else 0
    # Weights on a hub have two bytes a parameter
    work = {"pretrain_token_s": tokens, "download_gb_s": 2 * sizes.billions}
    return sizes.plan(work, disk_gib=sizes.weights_gib * sizes.slopes["copies"])


def _teacher_rollouts(sizes: _Sizes) -> int:
    teacher = sizes.values["synthesize"]
    questions = sizes.questions(teacher["dataset"], teacher["split"], teacher["questions"])
    return questions * teacher["samples"]


def _teacher(sizes: _Sizes) -> StagePlan:
    teacher = sizes.values["synthesize"]["teacher"]
    rollouts = _teacher_rollouts(sizes)
    if teacher.rstrip("/") == SCRIPTED:
        return sizes.plan({"scripted_rollout_s": rollouts}, rollouts)
    return _answers(sizes, teacher, rollouts)


def _sft(sizes: _Sizes) -> StagePlan:
    sft = sizes.values["sft"]
    slopes = sizes.slopes
    # Only right answers become rows, and every epoch reads them again
    rows = _teacher_rollouts(sizes) * slopes["success_share"]
    tokens = rows * slopes["row_tokens"] * sft["epochs"]
    # The newest ones, and the one of lowest loss
    checkpoints = sft["kept_checkpoints"] + (sft["eval_share"] > 0)
    adapters = checkpoints * sft["lora_rank"] * sizes.billions * slopes["adapter_bytes"]
    return sizes.plan(
        {"swift_start_s": 1, "sft_token_s": tokens * sizes.size},
        disk_gib=sizes.disk_gib(adapters),
        host_gib=sizes.training_gib,
        gpu_gib=sizes.update_gib(sft["max_length"]),
    )


def _choice(sizes: _Sizes) -> StagePlan:
    choice = sizes.values["choose_checkpoint"]
    if choice["by"] != "dev":
        return sizes.plan({})
    checkpoints = sizes.values["sft"]["kept_checkpoints"]
    rollouts = checkpoints * choice["dev"]["questions"] * choice["dev"]["samples"]
    work = {"serve_start_s": checkpoints, _rollout_slope(_vllm(sizes)): rollouts * sizes.size}
    return sizes.plan(work, rollouts)


def _merge(sizes: _Sizes, slope: str) -> StagePlan:
    # The merged model is as large as its base, whatever the adapter's rank
    gib = sizes.weights_gib
    return sizes.plan({slope: 1}, disk_gib=gib * sizes.slopes["copies"], host_gib=gib, gpu_gib=gib)


def _rl(sizes: _Sizes, start: str) -> StagePlan:
    rl = sizes.values["rl"]
    steps = rl["steps"][start]
    dev = rl["dev"]
    gate = rl["gate"]
    trained = steps * rl["groups_per_step"] * rl["group_size"]
    tokens = trained * sizes.slopes["trained_share"] * sizes.slopes["row_tokens"]
    rollouts = trained + (steps // dev["every"] + 1) * dev["questions"] * dev["samples"]
    rollout_slope = _rollout_slope(rl["sampler"])
    sampler_gib = (
        rl["sampler"]["gpu_memory_utilization"] * sizes.values["requires"]["gpu_memory_gib"]
    )
    if rl["backend"]["engine"] == "verl":
        return _verl(sizes, steps, rollouts, tokens, sampler_gib)

    rollouts += gate["questions"] * gate["samples"]
    update_gib = sizes.update_gib(rl["max_batch_tokens"])
    # A sampler that sleeps gives its memory to the update
    if not rl["sampler"]["sleep"]:
        update_gib += sampler_gib

    work = {
        "serve_start_s": 1,
        rollout_slope: rollouts * sizes.size,
        "rl_token_s": tokens * sizes.size,
        "rl_step_s": steps,
    }
    gpu_gib = max(update_gib, sizes.weights_gib + sampler_gib)
    return sizes.plan(work, rollouts, host_gib=sizes.training_gib, gpu_gib=gpu_gib)


def _verl(
    sizes: _Sizes, steps: int, rollouts: float, tokens: float, sampler_gib: float
) -> StagePlan:
    """Return the work of veRL, which shares model and rollouts among its GPUs by FSDP (ZeRO, arXiv 1910.02054)."""
    rl = sizes.values["rl"]
    verl = rl["backend"]["verl"]
    nodes = verl.get("nodes", 1)
    gpus = nodes * verl["gpus_per_node"]
    # The policy, and a critic of its size where there is one; an adapter's parameters are too few to count
    models = 2 if verl.get("critic") else 1
    parameters = models * (sizes.billions * 1e9 if rl["lora"] is None else 0.0)
    offloaded = WEIGHT_BYTES * bool(verl.get("param_offload"))
    offloaded += MOMENTS_BYTES * bool(verl.get("optimizer_offload"))

    # What is offloaded comes back in its turn: of one model, the moments
    resting_bytes = TRAINED_BYTES - offloaded + (MOMENTS_BYTES / models if offloaded else 0)
    update_gib = parameters * resting_bytes / gpus / GIB + sizes.weights_gib / gpus
    update_gib += rl["max_batch_tokens"] * sizes.slopes["gpu_token_gib"]
    if not rl["sampler"]["sleep"]:
        update_gib += sampler_gib

    host_gib = sizes.training_gib + (parameters * TRAINED_BYTES / GIB / nodes if offloaded else 0.0)
    # A checkpoint of every step that dev scores, with the optimizer's moments
    checkpoints = steps // rl["dev"]["every"]
    work = {
        "serve_start_s": 1,
        _rollout_slope(rl["sampler"]): rollouts * sizes.size / gpus,
        "verl_token_s": tokens * sizes.size * models / gpus,
        "rl_step_s": steps,
    }
    return sizes.plan(
        work,
        rollouts,
        disk_gib=checkpoints * parameters * (WEIGHT_BYTES + MOMENTS_BYTES) / GIB,
        host_gib=host_gib,
        gpu_gib=max(update_gib, sampler_gib, sizes.weights_gib / verl.get("tensor_parallel", 1)),
    )


# Stages without items, and without an argument
SINGLE = {
    "download": _download,
    "chunk": _chunk,
    "index": _index,
    "prepare_model": _base_model,
    "synthesize": _teacher,
    "sft": _sft,
    "choose_checkpoint": _choice,
}


def _show(plan: Plan) -> None:
    """Print the stages with their totals."""
    rows = [_cells(stage.stage, [stage]) for stage in plan.stages]
    rows.append(_cells("all / highest", plan.stages))
    header = (
        "stage",
        "time",
        "disk GiB",
        "host GiB",
        "GPU GiB",
        "million tokens, read + written",
        "price",
    )
    print_table(f"Profile {plan.profile}", header, rows)
    typer.echo(
        f"A run takes {_time(plan.hours)}. These are estimates: --slope NAME=VALUE changes one."
    )


def _cells(title: str, stages: Sequence[StagePlan]) -> tuple[str, ...]:
    """Return a line of the table: sums of time, disk, tokens and price, and the highest memory."""
    gpu_gib = max(stage.gpu_gib for stage in stages)
    asked = [stage for stage in stages if stage.api]
    read, written = (sum(stage.tokens[side] for stage in asked) / 1e6 for side in (0, 1))
    prices = [stage.price_usd for stage in asked]
    known = [price for price in prices if price is not None]
    price = f"{sum(known):.2f} USD" if len(known) == len(prices) else "not known"
    return (
        title,
        _time(sum(stage.seconds for stage in stages) / 3600),
        f"{sum(stage.disk_gib for stage in stages):.1f}",
        f"{max(stage.host_gib for stage in stages):.1f}",
        f"{gpu_gib:.0f}" if gpu_gib else "",
        f"{read:.1f} + {written:.1f}" if asked else "",
        price if asked else "",
    )


def _time(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"
