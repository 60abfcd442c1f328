"""What stages compute on a CPU: seconds and memory of model servers, of IFEval and of RL."""

import math
from collections.abc import Mapping
from typing import Any

from deepsearch_rl.cli.plan_cpu import cores
from deepsearch_rl.cli.plan_sizes import Sizes, engine_dtype

# Batches of an update that a CPU computes at the same time, where each has one thread
SIDE_BY_SIDE = 2
# Where no KL is in the loss, the start model scores one batch of so many
REFERENCE_STRIDE = 4
# Tokens of a prompt of IFEval
IFEVAL_PROMPT_TOKENS = 80


def _cpu(sizes: Sizes) -> Mapping[str, Any]:
    return sizes.values["serving"]["cpu"]


def servers_of(sizes: Sizes) -> int:
    """Return how many servers an evaluation or IFEval starts."""
    return 1 if sizes.cpu is None else _cpu(sizes)["servers"]


def served_s(sizes: Sizes, count: int, servers: int) -> float:
    """Return the time in which so many servers of the CPU engine compute so many rollouts."""
    at_once = math.ceil(sizes.values["agent"]["concurrency"] / servers)
    batch = min(at_once, _cpu(sizes)["slots"] // 2)
    rollout_s = sizes.rollout_model_s(batch, engine_dtype(sizes.values))
    return count * rollout_s / cores(sizes.threads("serving", "cpu"), servers)


def ifeval_s(sizes: Sizes, count: int, servers: int) -> float:
    """Return the time in which so many servers answer so many prompts of IFEval."""
    assert sizes.cpu is not None
    section = sizes.values["ifeval"]
    dtype = engine_dtype(sizes.values)
    batch = min(section["concurrency"], _cpu(sizes)["slots"] // 2)
    written = min(section["max_tokens"], sizes.slopes["ifeval_tokens"])
    prompt_s = IFEVAL_PROMPT_TOKENS * sizes.cpu.read_token_s(written, dtype)
    prompt_s += written * sizes.cpu.write_token_s(batch, written, dtype)
    return count * prompt_s / cores(sizes.threads("serving", "cpu"), servers)


def server_gib(sizes: Sizes, servers: int) -> float:
    """Return the memory of so many servers of the CPU engine: weights, keys and values."""
    assert sizes.shape is not None
    cpu = _cpu(sizes)
    dtype = engine_dtype(sizes.values)
    slots_gib = cpu["slots"] * sizes.shape.slot_gib(cpu["context_tokens"], dtype)
    return servers * (sizes.slopes["server_gib"] + sizes.shape.weights_gib(dtype) + slots_gib)


def rl_rollout_s(sizes: Sizes) -> float:
    """Return what the sampler, one engine on a CPU, computes for a rollout."""
    rl = sizes.values["rl"]
    batch = min(rl["concurrency"], rl["sampler"]["slots"] // 2)
    return sizes.rollout_model_s(batch, rl["dtype"]) / cores(sizes.threads("rl"))


def rl_token_s(sizes: Sizes) -> float:
    """Return what scores and update of a token take on a CPU."""
    assert sizes.cpu is not None
    rl = sizes.values["rl"]
    row = sizes.row_tokens
    loss = rl["loss"]
    # By the start model, in part where the loss has none of it, by the policy, and with gradient
    passes = 1.0 if loss["kl_loss"] or loss["kl_penalty"] else 1 / REFERENCE_STRIDE
    passes += 1 if rl["minibatches"] == 1 and not loss["kl_penalty"] else 2
    token_s = sizes.cpu.train_token_s(
        row, rl["dtype"], sizes.written_tokens / row, passes=passes, lora=_lora(sizes)
    )
    threads = sizes.threads("rl")
    return token_s / cores(threads, _side_by_side(sizes))


def rl_host_gib(sizes: Sizes) -> float:
    """Return the host memory of RL on a CPU: policy and served model, slots, and the batches of an update."""
    assert sizes.cpu is not None
    rl = sizes.values["rl"]
    shape = sizes.cpu.shape
    rows = rl["groups_per_step"] * rl["group_size"]
    batches = _side_by_side(sizes)
    held = min(batches * rl["max_batch_tokens"], rows * sizes.row_tokens)
    logits = min(held * sizes.written_tokens / sizes.row_tokens, batches * rl["logprob_chunk"])
    context_tokens = sizes.values["agent"]["context_tokens"]
    slots_gib = rl["sampler"]["slots"] * shape.slot_gib(context_tokens, rl["dtype"])
    # The trained and the served
    weights_gib = 2 * shape.weights_gib(rl["dtype"])
    update_gib = shape.update_gib(round(held), round(logits), *(_lora(sizes) or (None, 1.0)))
    return sizes.slopes["training_gib"] + weights_gib + slots_gib + update_gib


def _side_by_side(sizes: Sizes) -> int:
    return SIDE_BY_SIDE if sizes.threads("rl") == 1 else 1


def _lora(sizes: Sizes) -> tuple[int, float] | None:
    """Return the rank of RL's adapter and the share of the layers with it; None where all weights are trained."""
    lora = sizes.values["rl"]["lora"]
    return (lora["rank"], sizes.layer_share(lora.get("layers"))) if lora else None
