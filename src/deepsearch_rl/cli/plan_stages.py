"""What each stage of a profile takes, by its sizes: upper bounds, since runs that stop early take less."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deepsearch_rl.agent.config import GOLD, SCRIPTED
from deepsearch_rl.cli.plan_cpu import cores
from deepsearch_rl.cli.plan_cpu_stages import (
    ifeval_s,
    rl_host_gib,
    rl_rollout_s,
    rl_token_s,
    served_s,
    server_gib,
    servers_of,
)
from deepsearch_rl.cli.plan_sizes import (
    DOWNLOAD_GB,
    GIB,
    IFEVAL_PROMPTS,
    Sizes,
    StagePlan,
)
from deepsearch_rl.core.files import read_json
from deepsearch_rl.server.requests import is_loopback

# Bytes of a trained parameter in float32: the weight, its gradient, and two moments of the optimizer
WEIGHT_BYTES = 4
MOMENTS_BYTES = 8
TRAINED_BYTES = WEIGHT_BYTES + 4 + MOMENTS_BYTES
# Positions of the largest padded batch of veRL over the tokens that a batch may have
LARGEST_PADDED = 2
# Of the tokens of make_questions, those that the model writes
WRITTEN_SHARE = 0.1
# Of a generated conversation
PRETRAINED_TOKENS = 200


def stage_plans(sizes: Sizes, stage: str) -> dict[str, StagePlan]:
    """Return the plan of a stage by its items; a stage without items has the empty name."""
    values = sizes.values
    models = values["models"]
    match stage:
        case "evaluate":
            return {
                name: _answers(sizes, path, _rollouts(sizes, name), servers=servers_of(sizes))
                for name, path in models.items()
            }
        case "ifeval":
            section = values["ifeval"]
            count = IFEVAL_PROMPTS if section["prompts"] == "real" else section["count"]
            return {
                name: _answers(sizes, path, count, True, servers_of(sizes))
                for name, path in models.items()
            }
        case "optimize_prompt":
            section = values[stage]
            named = section["models"].items()
            return {name: _answers(sizes, path, section["rollouts"]) for name, path in named}
        case "make_questions":
            return dict.fromkeys(values[stage]["documents"], _question_writing(sizes))
        case "rl":
            return {start: _rl(sizes, start) for start in values["rl"]["starts"]}
        case "unsloth_merge":
            return dict.fromkeys(values["rl"]["starts"], _merge(sizes, stage, "adapter_merge_s"))
        case "filter":
            rollouts = _teacher_rollouts(sizes)
            return {"": sizes.plan({"filter_row_s": rollouts}, rollouts)}
        case "report" | "track":
            rollouts = sum(_rollouts(sizes, model) for model in models)
            return {"": sizes.plan({"report_rollout_s": rollouts})}
        case "merge":
            return {"": _merge(sizes, "merge", "merge_s")}
        case _:
            return {"": SINGLE[stage](sizes) if stage in SINGLE else sizes.plan({})}


def _answers(
    sizes: Sizes, folder: str, count: int, is_ifeval: bool = False, servers: int = 1
) -> StagePlan:
    """Return the work of so many rollouts, or prompts of IFEval, by a model of this machine or of an API."""
    endpoint = Path(folder, "endpoint.json")
    server = read_json(endpoint) if endpoint.is_file() else _named_endpoint(sizes, folder)
    if not server or is_loopback(urlsplit(server["base_url"]).hostname or ""):
        slope = "ifeval_prompt_s" if is_ifeval else _rollout_slope(_vllm(sizes))
        work = {"serve_start_s": 1, slope: count * _gpu_size(sizes)}
        # vLLM takes its share of a GPU at once
        share = _vllm(sizes).get("gpu_memory_utilization", 0.0)
        gpu_gib = share * sizes.values["requires"]["gpu_memory_gib"]
        rollouts = 0 if is_ifeval else count
        if sizes.cpu is None:
            return sizes.plan(work, rollouts, host_gib=sizes.weights_gib, gpu_gib=gpu_gib)
        model_s = ifeval_s(sizes, count, servers) if is_ifeval else served_s(sizes, count, servers)
        served_gib = server_gib(sizes, servers)
        return sizes.plan(work, rollouts, model_s=model_s, host_gib=served_gib)

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


def _named_endpoint(sizes: Sizes, folder: str) -> Mapping[str, str] | None:
    """Return the entry of section ``endpoints`` that a model's folder is made of."""
    endpoints = sizes.values.get("endpoints", {})
    name = Path(folder).name
    return endpoints.get(name) if Path(folder).parent == sizes.profile.models else None


def _model_name(server: Mapping[str, str]) -> str:
    """Return the model of an endpoint, read from the environment where it names a $VARIABLE."""
    model = server["model"]
    return os.environ.get(model[1:]) or model if model.startswith("$") else model


def _vllm(sizes: Sizes) -> Mapping[str, Any]:
    return sizes.values.get("serving", {}).get("vllm") or {}


def _gpu_size(sizes: Sizes) -> float:
    """Return what slopes of model work are multiplied by: on a CPU they hold none."""
    return 1.0 if sizes.cpu is not None else sizes.size


def _rollout_slope(server: Mapping[str, Any]) -> str:
    return "rollout_eager_s" if server.get("enforce_eager") else "rollout_s"


def _rollouts(sizes: Sizes, model: str) -> int:
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


def _question_writing(sizes: Sizes) -> StagePlan:
    """Return the writing of questions about a folder of documents, as if the whole budget were spent."""
    section = sizes.values["make_questions"]
    writer = section["writer"]
    tokens = section["budget_tokens"]
    calls = tokens / sizes.slopes["question_call_tokens"] / writer["concurrency"]
    server = _named_endpoint(sizes, writer["endpoint"]) or {"model": writer["endpoint"]}
    model = _model_name(server)
    split = (tokens * (1 - WRITTEN_SHARE), tokens * WRITTEN_SHARE)
    return sizes.plan({"api_call_s": calls}, api=model, tokens=split)


def _download(sizes: Sizes) -> StagePlan:
    hub = sizes.values["download"].get("hub")
    names = hub["repositories"] if hub else ()
    gigabytes = sum(DOWNLOAD_GB.get(name, 0.1) for name in names)
    return sizes.plan({"download_gb_s": gigabytes}, disk_gib=gigabytes + sizes.documents_gib)


def _chunk(sizes: Sizes) -> StagePlan:
    return sizes.plan({}, disk_gib=sizes.documents_gib)


def _index(sizes: Sizes) -> StagePlan:
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
    tokens_s = slopes["tensor_passage_s"] + slopes["tokenize_passage_s"] / slopes["host_cores"]
    return sizes.plan(
        {"index_passage_s": passages},
        model_s=encoded * max(slopes["encode_passage_s"], tokens_s),
        disk_gib=3 * sizes.documents_gib - sizes.disk_gib(missing),
        host_gib=passages * slopes["index_memory_bytes"] / GIB,
        gpu_gib=slopes["process_gib"] if encoded else 0.0,
    )


def _base_model(sizes: Sizes) -> StagePlan:
    pretrain = sizes.values["prepare_model"].get("pretrain")
    tokens = sum(level["tokens"] for level in pretrain["curriculum"]) if pretrain else 0
    # Weights on a hub have two bytes a parameter
    is_hub = sizes.values["prepare_model"]["source"] == "hub"
    work = {"pretrain_token_s": tokens, "download_gb_s": 2 * sizes.billions * is_hub}
    model_s = 0.0
    if pretrain and sizes.cpu is not None:
        token_s = sizes.cpu.train_token_s(PRETRAINED_TOKENS, "float32", 1.0)
        model_s = tokens * token_s / cores(1, pretrain["optimizer"]["threads"])
    return sizes.plan(work, model_s=model_s, disk_gib=sizes.weights_gib * sizes.slopes["copies"])


def _teacher_rollouts(sizes: Sizes) -> int:
    teacher = sizes.values["synthesize"]
    questions = sizes.questions(teacher["dataset"], teacher["split"], teacher["questions"])
    return questions * teacher["samples"]


def _teacher(sizes: Sizes) -> StagePlan:
    teacher = sizes.values["synthesize"]["teacher"]
    rollouts = _teacher_rollouts(sizes)
    if teacher.rstrip("/") in (SCRIPTED, GOLD):
        return sizes.plan({"scripted_rollout_s": rollouts}, rollouts)
    return _answers(sizes, teacher, rollouts)


def _sft(sizes: Sizes) -> StagePlan:
    sft = sizes.values["sft"]
    slopes = sizes.slopes
    # Only right answers become rows, and every epoch reads them again
    rows = _teacher_rollouts(sizes) * slopes["success_share"]
    tokens = rows * sizes.row_tokens * sft["epochs"]
    # The newest ones, and the one of lowest loss
    checkpoints = sft["kept_checkpoints"] + (sft["eval_share"] > 0)
    adapters = checkpoints * sft["lora_rank"] * sizes.billions * slopes["adapter_bytes"]
    work = {"swift_start_s": 1, "sft_token_s": tokens * _gpu_size(sizes)}
    if sizes.cpu is not None:
        lora = sizes.sft_lora
        token_s = sizes.cpu.train_token_s(sizes.row_tokens, sft["dtype"], 1.0, lora=lora)
        held = sft["max_length"] * sft["rows_per_forward"]
        host_gib = sizes.slopes["training_gib"] + sizes.cpu.shape.weights_gib(sft["dtype"])
        return sizes.plan(
            work,
            model_s=tokens * token_s / cores(sizes.threads("sft")),
            disk_gib=sizes.disk_gib(adapters),
            host_gib=host_gib + sizes.cpu.shape.update_gib(held, held, *lora),
        )
    return sizes.plan(
        work,
        disk_gib=sizes.disk_gib(adapters),
        host_gib=sizes.training_gib,
        gpu_gib=sizes.update_gib(sft["max_length"]),
    )


def _choice(sizes: Sizes) -> StagePlan:
    choice = sizes.values["choose_checkpoint"]
    if choice["by"] != "dev":
        return sizes.plan({})
    checkpoints = sizes.values["sft"]["kept_checkpoints"]
    rollouts = checkpoints * choice["dev"]["questions"] * choice["dev"]["samples"]
    work = {"serve_start_s": checkpoints, _rollout_slope(_vllm(sizes)): rollouts * _gpu_size(sizes)}
    if sizes.cpu is None:
        return sizes.plan(work, rollouts)
    model_s = served_s(sizes, rollouts, 1)
    return sizes.plan(work, rollouts, model_s=model_s, host_gib=server_gib(sizes, 1))


def _merge(sizes: Sizes, stage: str, slope: str) -> StagePlan:
    # The merged model is as large as its base, whatever the adapter's rank
    gib = sizes.weights_gib
    disk_gib = gib * sizes.slopes["copies"]
    if sizes.cpu is None:
        return sizes.plan({slope: 1}, disk_gib=disk_gib, host_gib=gib, gpu_gib=gib)

    # The merged model has to answer as base and adapter do
    merge = sizes.values[stage]
    prompt_s = sizes.row_tokens * sizes.cpu.read_token_s(sizes.row_tokens, merge["dtype"])
    prompt_s += merge["max_tokens"] * sizes.cpu.write_token_s(1, sizes.row_tokens, merge["dtype"])
    host_gib = 2 * sizes.cpu.shape.weights_gib(merge["dtype"])
    model_s = 2 * merge["prompts"] * prompt_s
    return sizes.plan({slope: 1}, model_s=model_s, disk_gib=disk_gib, host_gib=host_gib)


def _rl(sizes: Sizes, start: str) -> StagePlan:
    rl = sizes.values["rl"]
    steps = rl["steps"][start]
    dev = rl["dev"]
    gate = rl["gate"]
    trained = steps * rl["groups_per_step"] * rl["group_size"]
    tokens = trained * sizes.slopes["trained_share"] * sizes.row_tokens
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
        rollout_slope: rollouts * _gpu_size(sizes),
        "rl_token_s": tokens * _gpu_size(sizes),
        "rl_step_s": steps,
    }
    if sizes.cpu is not None:
        model_s = rollouts * rl_rollout_s(sizes) + tokens * rl_token_s(sizes)
        return sizes.plan(work, rollouts, model_s=model_s, host_gib=rl_host_gib(sizes))

    gpu_gib = max(update_gib, sizes.weights_gib + sampler_gib)
    return sizes.plan(work, rollouts, host_gib=sizes.training_gib, gpu_gib=gpu_gib)


def _verl(
    sizes: Sizes, steps: int, rollouts: float, tokens: float, sampler_gib: float
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
    # Rows are padded to the longest of their batch, after batches were made by tokens
    is_padded = verl.get("attention") != "flash_attention_2"
    held = rl["max_batch_tokens"] * (LARGEST_PADDED if is_padded else 1)
    update_gib += held * sizes.slopes["gpu_token_gib"]
    if not rl["sampler"]["sleep"]:
        update_gib += sampler_gib

    host_gib = sizes.training_gib + (parameters * TRAINED_BYTES / GIB / nodes if offloaded else 0.0)
    # The best, the newest, and one that is being written, with the optimizer's moments
    saved = steps // (verl.get("save_every") or rl["dev"]["every"])
    checkpoints = min(saved, rl["kept_checkpoints"] + 2)
    padding = sizes.slopes["padding"] if is_padded else 1.0
    work = {
        "serve_start_s": 1,
        _rollout_slope(rl["sampler"]): rollouts * _gpu_size(sizes) / gpus,
        "verl_token_s": tokens * padding * _gpu_size(sizes) * models / gpus,
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
