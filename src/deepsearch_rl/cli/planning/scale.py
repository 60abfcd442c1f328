"""What ``engine: verl`` takes for models of other sizes: GPUs, memory, hours, and searches per second.

The arithmetic of one size is that of the plan (:mod:`deepsearch_rl.cli.planning.training_work`): weights,
gradients and moments by ZeRO, shared by FSDP among all GPUs, with the sampler beside it. Here the
smallest machine is looked for on which it fits. Time is divided by the GPUs, as if they lost none
of it to each other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepsearch_rl.cli.planning.plan import Plan, make_plan
from deepsearch_rl.cli.planning.sizes import GIB, StageWork
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import Profile

MAX_NODES = 64
# Of the sampler's share of a GPU, what weights may take, so that the rest holds the cache of rollouts
WEIGHTS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Scale:
    """One size of model on the smallest machine: memory of one GPU and one node, time of RL, and its searches.

    ``queries_per_s`` are asked for while rollouts are sampled, which takes ``rollout_hours`` of
    ``hours``; ``cores`` answer them from the index of the profile's size.
    """

    billions: float
    nodes: int
    gpus_per_node: int
    tensor_parallel: int
    gpu_gib: float
    host_gib: float
    disk_gib: float
    hours: float
    rollout_hours: float
    queries_per_s: float
    cores: float


def verl_scales(
    profile: Profile, given: Mapping[str, float], sizes: Sequence[float]
) -> Iterator[Scale]:
    """Yield the smallest machine for each size of model, in thousand million parameters.

    Nodes have as many GPUs as the profile says, of the memory that it requires. Raises ConfigError
    where the profile does not train by ``engine: verl``, and where a size fits on no machine.
    """
    verl = profile.value("rl")["backend"].get("verl")
    if verl is None:
        raise ConfigError(
            f"profile {profile.name} does not train by engine: verl, whose sizes these are; name one that does, "
            "e.g. search_r1."
        )

    for billions in sizes:
        yield _smallest(profile, given, billions, verl["gpus_per_node"])


def _smallest(
    profile: Profile, given: Mapping[str, float], billions: float, gpus_per_node: int
) -> Scale:
    memory_gib = profile.value("requires")["gpu_memory_gib"]
    needed_gib = 0.0
    nodes = 1

    while nodes <= MAX_NODES:
        tensor_parallel = _tensor_parallel(profile, billions, gpus_per_node)
        machine = {
            "prepare_model.hub.repository": f"model-{billions:g}B",
            "rl.backend.verl.nodes": nodes,
            "rl.backend.verl.tensor_parallel": tensor_parallel,
        }
        sized = profile.with_overrides(machine)
        plan = make_plan(sized, given)
        work = _rl_stage(plan)
        needed_gib = work.gpu_gib
        if needed_gib <= memory_gib:
            return _scale(sized, plan, work, billions)
        nodes *= 2

    raise ConfigError(
        f"a model of {billions:g} thousand million parameters takes {needed_gib:.0f} GiB of each GPU on {MAX_NODES} "
        f"nodes, more than requires.gpu_memory_gib {memory_gib:g}: lower rl.max_batch_tokens, or use an adapter "
        "(rl.lora)."
    )


def _tensor_parallel(profile: Profile, billions: float, gpus_per_node: int) -> int:
    """Return the GPUs that share a sampler: the fewest on which its weights leave room for rollouts."""
    utilization = profile.value("rl")["sampler"]["gpu_memory_utilization"]
    room_gib = WEIGHTS_SHARE * utilization * profile.value("requires")["gpu_memory_gib"]
    parallel = 1
    while 2e9 * billions / GIB / parallel > room_gib and parallel < gpus_per_node:
        parallel *= 2
    return parallel


def _rl_stage(plan: Plan) -> StageWork:
    (work,) = [work for work in plan.stages if work.stage.startswith("rl@")]
    return work


def _scale(profile: Profile, plan: Plan, work: StageWork, billions: float) -> Scale:
    verl: dict[str, Any] = profile.value("rl")["backend"]["verl"]
    # Of one GPU's sampler, by the slope that the stage's rollouts are told by
    name = next(name for name in work.amounts if name.startswith("rollout_"))
    rollout_s = plan.slopes[name].value * billions
    gpus = verl["nodes"] * verl["gpus_per_node"]
    searches = min(
        plan.slopes["calls_per_rollout"].value - 1, profile.value("agent")["max_searches"]
    )
    # A slope of 0 leaves rollouts out
    queries_per_s = searches * gpus / rollout_s if rollout_s else 0.0

    return Scale(
        billions=billions,
        nodes=verl["nodes"],
        gpus_per_node=verl["gpus_per_node"],
        tensor_parallel=verl["tensor_parallel"],
        gpu_gib=work.gpu_gib,
        host_gib=work.host_gib,
        disk_gib=work.disk_gib,
        hours=work.seconds(plan.slopes) / 3600,
        rollout_hours=work.amounts[name] * plan.slopes[name].value / 3600,
        queries_per_s=queries_per_s,
        cores=queries_per_s * _core_s(profile, plan),
    )


def _core_s(profile: Profile, plan: Plan) -> float:
    """Return the seconds of one core that a query takes; a GPU that encodes takes none of it."""
    encoder = profile.value("index")["encoder"] or {}
    encodes_here = encoder.get("device", "cpu") == "cpu"
    return plan.slopes["search_core_s"].value + encodes_here * plan.slopes["encode_core_s"].value
