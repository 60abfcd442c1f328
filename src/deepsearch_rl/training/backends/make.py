"""RL engines by the name that ``rl.backend.engine`` gives them."""

from collections.abc import Callable, Mapping

from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.hardware import require_gpu
from deepsearch_rl.training.rl.trainer import BackendConfig, RlConfig, RlTask, RlTrainer

MakeTrainer = Callable[[RlTask, RlConfig], RlTrainer]


def _make_own(task: RlTask, config: RlConfig) -> RlTrainer:
    from deepsearch_rl.training.backends.art.service import make_own_trainer  # noqa: PLC0415 - imports torch and ART

    return make_own_trainer(task, config)


def _make_unsloth(task: RlTask, config: RlConfig) -> RlTrainer:
    from deepsearch_rl.training.backends.art.unsloth import make_unsloth_trainer  # noqa: PLC0415 - imports trl

    return make_unsloth_trainer(task, config)


def _art(backend: BackendConfig) -> MakeTrainer:
    if backend.service == "unsloth":
        require_gpu("rl with service: unsloth", packages=["unsloth", "bitsandbytes", "trl"])
        from deepsearch_rl.training.backends.art.runtime import require_runtime  # noqa: PLC0415 - for this service alone

        require_runtime()
        return _make_unsloth

    if backend.device == "cuda":
        require_gpu("rl with device: cuda")
    return _make_own


ENGINES: Mapping[str, Callable[[BackendConfig], MakeTrainer]] = {"art": _art}


def open_engine(backend: BackendConfig) -> MakeTrainer:
    """Return what makes the trainer of a run, after a check, before anything is read or started, that it can run here.

    The engine itself is imported when the trainer is made: a watching process asks only whether it
    could be. Raises UnknownNameError for an unknown engine, UnavailableError if hardware or
    packages are missing.
    """
    return look_up("rl.backend.engine", backend.engine, ENGINES)(backend)
