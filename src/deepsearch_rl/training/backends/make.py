"""RL engines by the name that ``rl.backend`` gives them."""

from collections.abc import Callable, Mapping

from deepsearch_rl.errors import look_up
from deepsearch_rl.serving.hardware import require_gpu
from deepsearch_rl.training.backends.art.cpu import make_cpu_trainer
from deepsearch_rl.training.rl.trainer import RlConfig, RlTask, RlTrainer

MakeTrainer = Callable[[RlTask, RlConfig], RlTrainer]


def _unsloth() -> MakeTrainer:
    require_gpu("rl with the unsloth backend", packages=["unsloth", "bitsandbytes", "trl"])
    from deepsearch_rl.training.backends.art.runtime import require_runtime  # noqa: PLC0415 - for this engine alone

    require_runtime()
    from deepsearch_rl.training.backends.art.unsloth import make_unsloth_trainer  # noqa: PLC0415 - imports trl

    return make_unsloth_trainer


ENGINES: Mapping[str, Callable[[], MakeTrainer]] = {"cpu": lambda: make_cpu_trainer, "unsloth": _unsloth}


def open_engine(name: str) -> MakeTrainer:
    """Return what makes the trainer of a run, after a check, before anything is read or started, that it can run here.

    Raises UnknownNameError for an unknown name, UnavailableError if hardware or packages are missing.
    """
    return look_up("rl.backend", name, ENGINES)()
