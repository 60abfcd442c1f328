"""Our generation engine behind veRL's server manager, on a CPU: a Ray actor for each replica samples for agent loops.

Registered under the name :data:`NAME`. After each update the first training process of a replica
sends it all weights; with an adapter veRL merges them first (``model.lora.merge``). Equal prompts of a step draw
different tokens, and the same ones when the step is repeated, whichever rollout asks first.
"""

import asyncio
import importlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.serve.engine import Engine, SamplingParams
from deepsearch_rl.train.verl import cpu_platform  # noqa: F401 - registers the platform

ray: Any = importlib.import_module("ray")
rollouts: Any = importlib.import_module("verl.workers.rollout.base")
replicas: Any = importlib.import_module("verl.workers.rollout.replica")
NAME = "deepsearch"
SERVER = "deepsearch_sampler_{}"


class CpuServer:
    """What veRL asks of a rollout server; the model is the start until the first weights come."""

    def __init__(self, model: str, slots: int, context_tokens: int, seed: int) -> None:
        transformers: Any = importlib.import_module("transformers")
        torch.set_num_threads(1)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32
        ).eval()
        self._engine = Engine(self._model, slots, context_tokens)
        self._seed = seed
        self._step: int | None = None
        self._asked = Counter[str]()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """Return veRL's TokenOutput for a prompt."""
        del request_id
        temperature = float(sampling_params["temperature"])
        prompt = sha256_json([self._seed, self._step, temperature, prompt_ids])
        self._asked[prompt] += 1
        # Which request comes first does not matter: only how often its prompt was sampled before
        seed = int(sha256_json([prompt, self._asked[prompt]])[:12], 16)
        sampling = SamplingParams(temperature, int(sampling_params["max_tokens"]), seed)
        answer = await asyncio.wrap_future(self._engine.generate(list(prompt_ids), sampling))
        return replicas.TokenOutput(
            token_ids=list(answer.token_ids),
            log_probs=list(answer.logprobs),
            stop_reason="completed",
            extra_fields={"global_steps": self._step},
        )

    async def load(self, weights: list[tuple[str, torch.Tensor]], step: int | None) -> int:
        """Take all weights of a step and return how many there are; raise KeyError for an unknown name."""
        own = dict(self._model.named_parameters())
        # veRL leaves out tied weights, which are those of another name
        missing = own.keys() - dict(weights).keys()
        if missing - set(self._model._tied_weights_keys or ()):
            raise KeyError(f"veRL sent no weights named {', '.join(sorted(missing)[:3])}")

        with torch.no_grad():
            for name, weight in weights:
                if name in own:
                    own[name].copy_(weight)
        self._engine.forget()
        self._step = step
        self._asked.clear()
        return len(weights)

    async def idle(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no accelerator's memory to give back, and requests are never cut off."""

    wake_up = sleep = abort_all_requests = resume_generation = idle
    clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = idle


class CpuReplica(replicas.RolloutReplica):
    """Starts the server of one replica."""

    async def launch_servers(self) -> None:
        """Start the actor, which the training processes find by its name."""
        name = SERVER.format(self.replica_rank)
        actor = ray.remote(num_cpus=0.1)(CpuServer).options(name=name)
        server = actor.remote(
            self.model_config["path"],
            self.config.max_num_seqs,
            self.config.max_model_len,
            self.config.seed,
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = name


class CpuAdapter(rollouts.BaseRollout):
    """The rollout's half in a training process: it hands weights over."""

    async def resume(self, tags: list[str]) -> None:
        """Do nothing, as :meth:`CpuServer.idle`."""

    async def release(self) -> None:
        """Do nothing, as :meth:`CpuServer.idle`."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, Any]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        """Send all weights to the server of this replica from its first process; all take part in gathering them."""
        del wire_format
        dense = [(name, _dense(weight)) for name, weight in weights]
        rank = torch.distributed.get_rank()
        replica, place = divmod(rank, int(self.config.tensor_model_parallel_size))
        if place == 0:
            await ray.get_actor(SERVER.format(replica)).load.remote(dense, global_steps)


def _dense(weight: Any) -> torch.Tensor:
    """Return a weight that may be spread over the training processes."""
    whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return whole.detach().float().cpu()


replicas.RolloutReplicaRegistry.register(NAME, lambda: CpuReplica)
rollouts._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.{CpuAdapter.__name__}"
