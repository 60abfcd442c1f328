"""A CPU as a platform of veRL 0.9.1, for small models and tests; importing this registers it.

``VERL_USE_EXTERNAL_MODULES`` has every process of veRL import
:mod:`deepsearch_rl.train.verl.cpu_rollout`, which imports this;
``VERL_PLATFORM=cpu`` chooses it. Ray is told of as many GPUs as there are processes that train.

Three things have no hook in veRL 0.9.1 and are replaced (:func:`_patch`), in these processes alone:

- ``init_process_group`` is asked for the backend ``cpu:gloo,cpu:gloo``, which names a device twice.
- FSDP2's engine of the reference model asks for pinned memory, which only an accelerator has.
- The value model asks for flash attention, whatever ``override_config`` says.
"""

import contextlib
import importlib
import types
from collections.abc import Iterator
from typing import Any

import torch

from deepsearch_rl.core.errors import UnavailableError

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
