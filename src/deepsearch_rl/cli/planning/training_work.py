"""The work of the stages that train: base model, SFT, RL by either engine, and the merges of their adapters."""

from collections.abc import Iterator, Mapping
from typing import Any

from deepsearch_rl.agent.config import SCRIPTED
from deepsearch_rl.cli.planning.answer_work import answers, endpoint_of, rollout_slope
from deepsearch_rl.cli.planning.sizes import GIB, Sizes, StageWork

# Bytes of a trained parameter in float32: the weight, its gradient, and two moments of the optimizer
WEIGHT_BYTES = 4.0
GRADIENT_BYTES = 4.0
MOMENTS_BYTES = 8.0
TRAINED_BYTES = WEIGHT_BYTES + GRADIENT_BYTES + MOMENTS_BYTES
# What veRL keeps in main memory between its uses, by the field of params that says so
OFFLOADED_BYTES: Mapping[str, float] = {
    "param_offload": WEIGHT_BYTES,
    "optimizer_offload": MOMENTS_BYTES,
}


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
    """Return the work of veRL's trainer, which shares model and rollouts among its GPUs."""
    verl = rl["backend"]["verl"]
    gpus = verl.get("nodes", 1) * verl["gpus_per_node"]
    trained_models = _trained_models(verl)
    work = {
        "serve_start_s": 1,
        rollout_slope(rl["sampler"]): rollouts * sizes.size / gpus,
        "verl_token_s": tokens * sizes.size * trained_models / gpus,
        "rl_step_s": rl["steps"][start],
    }

    trained_parameters = trained_models * _policy_parameters(sizes, rl)
    # Main memory is of one node
    host_gib = sizes.weights_gib + sizes.slope("training_gib")
    if _offloaded_bytes(verl):
        host_gib += trained_parameters * TRAINED_BYTES / GIB / verl.get("nodes", 1)

    # A checkpoint of every step that dev scores, with the optimizer's moments
    checkpoints = rl["steps"][start] // rl["dev"]["every"]
    disk_gib = checkpoints * trained_parameters * (WEIGHT_BYTES + MOMENTS_BYTES) / GIB
    return sizes.stage(
        f"rl@{start}",
        work,
        int(rollouts),
        disk_gib=disk_gib,
        host_gib=host_gib,
        gpu_gib=_verl_gpu_gib(sizes, rl, gpus),
    )


def _trained_models(verl: Mapping[str, Any]) -> int:
    """Return how many models of the policy's size veRL trains: the policy, and a critic where there is one."""
    return 2 if verl.get("critic") else 1


def _policy_parameters(sizes: Sizes, rl: Mapping[str, Any]) -> float:
    """Return the trained parameters of the policy; those of an adapter are too few to count."""
    return sizes.billions * 1e9 if rl["lora"] is None else 0.0


def _offloaded_bytes(verl: Mapping[str, Any]) -> float:
    """Return the bytes of a trained parameter that are in main memory between their uses."""
    return sum(size for name, size in OFFLOADED_BYTES.items() if verl.get(name))


def _verl_gpu_gib(sizes: Sizes, rl: Mapping[str, Any], gpus: int) -> float:
    """Return the memory of one GPU: the most that an update, the sampler, or its weights alone take.

    FSDP shards what is trained among the GPUs (ZeRO, arXiv 1910.02054: weights, gradients and two
    moments).
    """
    verl = rl["backend"]["verl"]
    sampler = rl["sampler"]
    parameters = _policy_parameters(sizes, rl)
    offloaded_bytes = _offloaded_bytes(verl)
    resting_bytes = TRAINED_BYTES - offloaded_bytes
    update_gib = _trained_models(verl) * parameters * resting_bytes / gpus / GIB
    # What is offloaded comes back in its turn: of one model, the largest part
    if offloaded_bytes:
        update_gib += parameters * max(OFFLOADED_BYTES.values()) / gpus / GIB
    # The frozen weights: those under an adapter, and the reference of the KL
    update_gib += sizes.weights_gib / gpus
    update_gib += rl["max_batch_tokens"] * sizes.slope("gpu_token_gib")

    gpu_memory_gib = sizes.profile.value("requires")["gpu_memory_gib"]
    sampler_gib = sampler["gpu_memory_utilization"] * gpu_memory_gib
    # A sampler that sleeps gives its memory to the update
    if not sampler["sleep"]:
        update_gib += sampler_gib
    return max(update_gib, sampler_gib, sizes.weights_gib / verl.get("tensor_parallel", 1))


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
