"""veRL 0.9.1 on a CPU, for small models and tests: a platform, and our generation engine as its sampler.

``VERL_USE_EXTERNAL_MODULES`` has every process of veRL import this module, which registers both;
``VERL_PLATFORM=cpu`` chooses the platform. Ray is told of as many GPUs as there are processes that
train.

Three things have no hook in veRL and are replaced (:func:`_patch`), in these processes alone:

- ``init_process_group`` is asked for the backend ``cpu:gloo,cpu:gloo``, which names a device twice.
- FSDP2's engine of the reference model asks for pinned memory, which only an accelerator has.
- The value model asks for flash attention, whatever ``override_config`` says.

A Ray actor for each replica samples for agent loops. After each update the first training process
of a replica sends it all weights; with an adapter veRL merges them first (``model.lora.merge``).
Equal prompts of a step draw different tokens, and the same ones when the step is repeated, whichever
rollout asks first.
"""

import asyncio
import contextlib
import importlib
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from deepsearch_rl.core.errors import UnavailableError
from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.serve.engine import Engine, SamplingParams

platforms: Any = importlib.import_module("verl.plugin.platform.platform_manager")
platform_base: Any = importlib.import_module("verl.plugin.platform.platform_base")
# More than processes on a CPU can be: each is a device of its own to veRL
DEVICES = 64
MEMORY_BYTES = 1 << 34


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_bytes(*_: Any, **__: Any) -> int:
    return 0


class CpuDevice(types.ModuleType):
    """What veRL calls of ``torch.cuda``, as far as a CPU has it."""

    memory_allocated = memory_reserved = staticmethod(_no_bytes)
    max_memory_allocated = max_memory_reserved = staticmethod(_no_bytes)
    empty_cache = synchronize = ipc_collect = set_device = staticmethod(_nothing)
    reset_peak_memory_stats = manual_seed = manual_seed_all = set_rng_state = staticmethod(_nothing)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name)

    @staticmethod
    def mem_get_info(*_: Any) -> tuple[int, int]:
        """Return free and total bytes, which nothing on a CPU decides by."""
        return MEMORY_BYTES, MEMORY_BYTES

    @staticmethod
    def get_rng_state(*_: Any) -> torch.Tensor:
        """Return the CPU's own state, which veRL keeps a second time."""
        return torch.get_rng_state()

    @staticmethod
    def is_available() -> bool:
        """Return True."""
        return True

    @staticmethod
    def device_count() -> int:
        """Return :data:`DEVICES`."""
        return DEVICES

    @staticmethod
    def current_device() -> torch.device:
        """Return the CPU."""
        return torch.device("cpu")

    @staticmethod
    def get_device_name(*_: Any) -> str:
        """Return its name."""
        return "cpu"


DEVICE = CpuDevice("cpu_device")


@platforms.PlatformRegistry.register(platform="cpu")
class CpuPlatform(platform_base.PlatformBase):
    """The methods of veRL's ``PlatformBase``, which describes them."""

    # ruff: noqa: D102
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = DEVICE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return DEVICES

    def set_device(self, device_index: int) -> None:
        """Do nothing: there is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: work on a CPU is done when its call returns."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: the allocator is the system's."""

    def empty_cache(self) -> None:
        """Do nothing: there is no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        del device_index
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        del msg
        yield

    def profiler_start(self) -> None:
        """Do nothing: there is no profiler."""

    def profiler_stop(self) -> None:
        """Do nothing: there is no profiler."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _patch() -> None:
    """Replace what the module's docstring lists."""
    distributed: Any = torch.distributed
    fsdp: Any = importlib.import_module("verl.utils.fsdp_utils")
    models: Any = importlib.import_module("transformers").AutoModelForTokenClassification
    init_process_group = distributed.init_process_group
    offload_policy = fsdp.CPUOffloadPolicy
    from_pretrained = models.from_pretrained.__func__

    def init(backend: str | None = None, *arguments: Any, **options: Any) -> Any:
        backend = "gloo" if backend == "cpu:gloo,cpu:gloo" else backend
        return init_process_group(backend, *arguments, **options)

    def offload(pin_memory: bool = True) -> Any:
        del pin_memory
        return offload_policy(pin_memory=False)

    def load(cls: Any, *arguments: Any, **options: Any) -> Any:
        return from_pretrained(cls, *arguments, **options | {"attn_implementation": "sdpa"})

    distributed.init_process_group = init
    fsdp.CPUOffloadPolicy = offload
    models.from_pretrained = classmethod(load)


if torch.cuda.is_available():
    raise UnavailableError(
        "rl.backend.device is cpu, and this machine has a GPU: set it to cuda and verl.rollout to "
        "vllm or sglang."
    )
_patch()

# After the platform is registered
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
