"""RL engines by the name that ``rl.backend`` gives them."""

from collections.abc import Callable, Mapping

from deepsearch_rl.errors import look_up
from deepsearch_rl.serving.hardware import require_gpu
from deepsearch_rl.training.rl.trainer import RlConfig, RlTask, RlTrainer

MakeTrainer = Callable[[RlTask, RlConfig], RlTrainer]


def _make_cpu(task: RlTask, config: RlConfig) -> RlTrainer:
    from deepsearch_rl.training.backends.art.cpu import make_cpu_trainer  # noqa: PLC0415 - imports torch and ART

    return make_cpu_trainer(task, config)


def _make_unsloth(task: RlTask, config: RlConfig) -> RlTrainer:
    from deepsearch_rl.training.backends.art.unsloth import make_unsloth_trainer  # noqa: PLC0415 - imports trl

    return make_unsloth_trainer(task, config)


def _unsloth() -> MakeTrainer:
    require_gpu("rl with the unsloth backend", packages=["unsloth", "bitsandbytes", "trl"])
    return _make_unsloth


ENGINES: Mapping[str, Callable[[], MakeTrainer]] = {"cpu": lambda: _make_cpu, "unsloth": _unsloth}


def open_engine(name: str) -> MakeTrainer:
    """Return what makes the trainer of a run, after a check, before anything is read or started, that it can run here.

    The engine itself is imported when the trainer is made: a watching process asks only whether it could be.
    Raises UnknownNameError for an unknown name, UnavailableError if hardware or packages are missing.
    """
    return look_up("rl.backend", name, ENGINES)()
