"""The work of the stages in which a model answers: on this machine, or behind the server of an API."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deepsearch_rl.cli.planning.sizes import Sizes, StageWork
from deepsearch_rl.core.files import read_json
from deepsearch_rl.server.requests import is_loopback


def answers(
    sizes: Sizes, stage: str, server: Mapping[str, str] | None, count: int, is_ifeval: bool = False
) -> StageWork:
    """Return the work of so many rollouts or prompts, by a model on this machine or by that of an API's server."""
    # A server on this machine takes its time and no money
    if server and not is_loopback(urlsplit(server["base_url"]).hostname or ""):
        asked = _asked_prompts if is_ifeval else _asked_rollouts
        return asked(sizes, stage, model_name(server["model"]), count)
    slope = "ifeval_prompt_s" if is_ifeval else rollout_slope(sizes.vllm)
    work = {"serve_start_s": 1, slope: count * sizes.size}
    # vLLM takes its share of a GPU at once
    utilization = sizes.vllm.get("gpu_memory_utilization", 0.0)
    gpu_gib = utilization * sizes.profile.value("requires")["gpu_memory_gib"]
    rollouts = 0 if is_ifeval else count
    return sizes.stage(stage, work, rollouts, host_gib=sizes.weights_gib, gpu_gib=gpu_gib)


def _asked_rollouts(sizes: Sizes, stage: str, model: str, count: int) -> StageWork:
    """Return the work of so many rollouts by an API's model."""
    concurrency = sizes.profile.value("agent")["concurrency"]
    calls = count * sizes.slope("calls_per_rollout") / concurrency
    tokens = (count * sizes.slope("prompt_tokens"), count * sizes.slope("completion_tokens"))
    return sizes.stage(stage, {"api_call_s": calls}, count, api=model, tokens=tokens)


def _asked_prompts(sizes: Sizes, stage: str, model: str, count: int) -> StageWork:
    """Return the work of so many IFEval prompts, a call each, by an API's model; none of them is kept as a rollout."""
    calls = count / sizes.profile.value("ifeval")["concurrency"]
    tokens = (0.0, count * sizes.slope("ifeval_tokens"))
    return sizes.stage(stage, {"api_call_s": calls}, api=model, tokens=tokens)


def evaluation_rollouts(sizes: Sizes, model: str) -> int:
    """Return the rollouts of one model's evaluation: samples, greedy answers, controls and variants."""
    section = sizes.profile.value("evaluate")
    rollouts = 0

    for name, plan in section["sets"].items():
        count = sizes.questions(name, section["split"], plan["questions"])
        rollouts += count * plan["samples"] + min(count, plan["greedy"])
        # Without search, with the gold passages, and with random ones where these are asked for
        controls = 3 if section["random_passages"] else 2
        rollouts += controls * min(count, plan["controls"])

    for variant in section["variants"].values():
        if variant["models"] is None or model in variant["models"]:
            count = sizes.questions(variant["dataset"], section["split"], variant["questions"])
            rollouts += count * variant["samples"]

    return rollouts


def endpoint_of(folder: str) -> Mapping[str, str] | None:
    """Return the address of a model behind a server, None for a folder with weights."""
    file = Path(folder, "endpoint.json")
    return read_json(file) if file.is_file() else None


def model_name(value: str) -> str:
    """Return the model that an endpoint names, what the variable of ``$NAME`` holds; ``$NAME`` where it is not set."""
    if not value.startswith("$"):
        return value
    return os.environ.get(value[1:]) or value


def rollout_slope(server: Mapping[str, Any]) -> str:
    """Return the slope of a rollout by a model server with these settings."""
    return "rollout_eager_s" if server.get("enforce_eager") else "rollout_s"
