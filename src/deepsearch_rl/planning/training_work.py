"""The work of the stages that train: base model, SFT, RL by either engine, and the merges of their adapters."""

from collections.abc import Iterator, Mapping
from typing import Any

from deepsearch_rl.planning.answer_work import answers, endpoint_of, rollout_slope
from deepsearch_rl.planning.sizes import GIB, Sizes, StageWork
from deepsearch_rl.trajectories.synthesis.scripted_config import SCRIPTED

# Bytes per trained parameter that veRL keeps in main memory between their uses
OFFLOADED_BYTES: Mapping[str, float] = {"param_offload": 4.0, "optimizer_offload": 8.0}


def training(sizes: Sizes) -> Iterator[StageWork]:
    """Yield the stages from the base model to the merged models of RL."""
    value = sizes.profile.value
    model = value("prepare_model")
    teacher = value("synthesize")
    sft = value("sft")
    starts = value("rl")["starts"]
    tokens = 0
    if model.get("pretrain"):
        tokens = sum(level["tokens"] for level in model["pretrain"]["curriculum"])

    # Weights on a hub have two bytes a parameter
    work = {"pretrain_token_s": tokens, "download_gb_s": 2 * sizes.billions}
    yield sizes.stage("prepare_model", work, disk_gib=sizes.weights_gib * sizes.slope("copies"))

    if _is_wanted(sizes, "sft") or "sft" in starts:
        yield from _tuning(sizes, teacher, sft)
    for start in starts:
        yield _rl(sizes, start)
    for start in starts:
        if _is_wanted(sizes, f"rl_merged/{start}"):
            yield _merges(sizes, f"unsloth_merge@{start}", "adapter_merge_s")


def _is_wanted(sizes: Sizes, folder: str) -> bool:
    """Return whether a model of the profile is that of a folder below its models."""
    return str(sizes.profile.models / folder) in sizes.profile.value("models").values()


def _tuning(
    sizes: Sizes, teacher: Mapping[str, Any], sft: Mapping[str, Any]
) -> Iterator[StageWork]:
    """Yield the stages between the base model and the fine-tuned one."""
    questions = sizes.questions(teacher["dataset"], teacher["split"], teacher["questions"])
    rollouts = questions * teacher["samples"]
    if teacher["teacher"].rstrip("/") == SCRIPTED:
        yield sizes.stage("synthesize", {"scripted_rollout_s": rollouts}, rollouts)
    else:
        yield answers(sizes, "synthesize", endpoint_of(teacher["teacher"]), rollouts)

    yield sizes.stage("filter", {"filter_row_s": rollouts}, rollouts)
    # Only right answers become rows, and every epoch reads them again
    tokens = rollouts * sizes.slope("success_share") * sizes.slope("row_tokens") * sft["epochs"]
    work = {"swift_start_s": 1, "sft_token_s": tokens * sizes.size}

    yield _trains(
        sizes,
        "sft",
        work,
        _update_gib(sizes, sft["max_length"]),
        disk_gib=sizes.disk_gib(_sft_checkpoint_bytes(sizes, sft)),
    )
    yield _chooses(sizes, sft["kept_checkpoints"])
    yield _merges(sizes, "merge", "merge_s")


def _chooses(sizes: Sizes, checkpoints: int) -> StageWork:
    choice = sizes.profile.value("choose_checkpoint")
    if choice["by"] != "dev":
        return sizes.stage("choose_checkpoint", {})
    rollouts = checkpoints * choice["dev"]["questions"] * choice["dev"]["samples"]
    work = {"serve_start_s": checkpoints, rollout_slope(sizes.vllm): rollouts * sizes.size}
    return sizes.stage("choose_checkpoint", work, rollouts)


def _rl(sizes: Sizes, start: str) -> StageWork:
    rl = sizes.profile.value("rl")
    steps = rl["steps"][start]
    dev = rl["dev"]
    gate = rl["gate"]
    trained = steps * rl["groups_per_step"] * rl["group_size"]
    tokens = (
        trained * rl["update_epochs"] * sizes.slope("trained_share") * sizes.slope("row_tokens")
    )
    # An upper bound: a step is refilled only as long as groups with equal rewards leave it short
    rollouts = trained * (1 + rl["max_refills"])
    checks = (steps // dev["every"] + 1) * dev["questions"] * dev["samples"]
    # veRL asks no gate before its first step
    if rl["backend"]["engine"] == "verl":
        return _verl(sizes, start, rl, rollouts + checks, tokens)

    checks += gate["questions"] * gate["samples"]

    gpu_gib = sizes.profile.value("requires")["gpu_memory_gib"]
    sampler_gib = rl["sampler"]["gpu_memory_utilization"] * gpu_gib
    update_gib = _update_gib(sizes, rl["max_batch_tokens"])
    # A sampler that sleeps gives its memory to the update
    if not rl["sampler"]["sleep"]:
        update_gib += sampler_gib

    work = {
        "serve_start_s": 1,
        rollout_slope(rl["sampler"]): (rollouts + checks) * sizes.size,
        "rl_token_s": tokens * sizes.size,
        "rl_step_s": steps,
    }
    return _trains(
        sizes,
        f"rl@{start}",
        work,
        max(update_gib, sizes.weights_gib + sampler_gib),
        rollouts + checks,
    )


def _verl(
    sizes: Sizes, start: str, rl: Mapping[str, Any], rollouts: float, tokens: float
) -> StageWork:
    """Return the work of veRL's trainer, which shares model and rollouts among its GPUs.

    ``gpu_gib`` is of one GPU: the larger one of the sampler, and of what FSDP leaves there
    (ZeRO, arXiv 1910.02054: weights, gradients and two moments in float32, whole or sharded).
    """
    verl = rl["backend"]["verl"]
    gpus = verl.get("nodes", 1) * verl["gpus_per_node"]
    policy_and_critic = 2 if verl.get("critic") else 1
    work = {
        "serve_start_s": 1,
        rollout_slope(rl["sampler"]): rollouts * sizes.size / gpus,
        "verl_token_s": tokens * sizes.size * policy_and_critic / gpus,
        "rl_step_s": rl["steps"][start],
    }

    billions = sizes.billions if rl["lora"] is None else 0.0
    offloaded = [name for name in ("param_offload", "optimizer_offload") if verl.get(name)]
    # What is trained rests on the GPU, but for the parts that come from main memory in their turn
    resting = 16.0 - sum(OFFLOADED_BYTES[name] for name in offloaded)
    state_gib = policy_and_critic * billions * 1e9 * resting / gpus / GIB
    working_gib = billions * 1e9 * max(OFFLOADED_BYTES[name] for name in OFFLOADED_BYTES) / gpus
    update_gib = (
        state_gib
        + working_gib / GIB * bool(offloaded)
        # The frozen weights: those under an adapter, and the reference of the KL
        + sizes.weights_gib / gpus
        + rl["max_batch_tokens"] * sizes.slope("gpu_token_gib")
    )
    sampler = rl["sampler"]
    share = sampler["gpu_memory_utilization"] * sizes.profile.value("requires")["gpu_memory_gib"]
    resting_sampler_gib = 0.0 if sampler["sleep"] else share
    gpu_gib = max(
        update_gib + resting_sampler_gib,
        share,
        sizes.weights_gib / verl.get("tensor_parallel", 1),
    )
    # Of one node
    host_gib = policy_and_critic * billions * 16e9 / GIB / verl.get("nodes", 1)
    host_gib = host_gib if offloaded else 0.0
    host_gib += sizes.weights_gib + sizes.slope("training_gib")
    # A checkpoint of every step that dev scores, with the optimizer's moments
    saved = rl["steps"][start] // rl["dev"]["every"]
    disk_gib = saved * policy_and_critic * billions * 12e9 / GIB
    return sizes.stage(
        f"rl@{start}",
        work,
        int(rollouts),
        disk_gib=disk_gib,
        host_gib=host_gib,
        gpu_gib=gpu_gib,
    )


def _update_gib(sizes: Sizes, tokens: int) -> float:
    return sizes.weights_gib + tokens * sizes.slope("gpu_token_gib")


def _sft_checkpoint_bytes(sizes: Sizes, sft: Mapping[str, Any]) -> float:
    """Return the size of the adapters that SFT leaves to choose from: the newest, and the one of lowest loss."""
    checkpoints = sft["kept_checkpoints"] + (sft["eval_share"] > 0)
    return checkpoints * sft["lora_rank"] * sizes.billions * sizes.slope("adapter_bytes")


def _trains(
    sizes: Sizes,
    stage: str,
    work: Mapping[str, float],
    gpu_gib: float,
    rollouts: int = 0,
    disk_gib: float = 0.0,
) -> StageWork:
    host_gib = sizes.weights_gib + sizes.slope("training_gib")
    return sizes.stage(stage, work, rollouts, disk_gib=disk_gib, host_gib=host_gib, gpu_gib=gpu_gib)


def _merges(sizes: Sizes, stage: str, slope: str) -> StageWork:
    # The merged model is as large as its base, whatever the adapter's rank
    gib = sizes.weights_gib
    return sizes.stage(
        stage, {slope: 1}, disk_gib=gib * sizes.slope("copies"), host_gib=gib, gpu_gib=gib
    )
