"""RL engines by the name that ``rl.backend.engine`` gives them.

An engine trains a task and writes the run's folder. ``art`` rolls out and updates where the
project's own loop says so; ``verl`` owns its loop.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from deepsearch_rl.core.errors import UnavailableError, look_up
from deepsearch_rl.core.hardware import require_gpu
from deepsearch_rl.train.rl.rl_config import BackendConfig, RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask, RlTrainer

MakeTrainer = Callable[[RlTask, RlConfig], RlTrainer]
# Trains a task; writes best adapter or weights, ``train_log.jsonl`` and ``manifest.json`` to a
# folder
RlEngine = Callable[[RlTask, RlConfig, Path], None]


def _make_own(task: RlTask, config: RlConfig) -> RlTrainer:
    from deepsearch_rl.train.art.service import make_own_trainer  # noqa: PLC0415 - imports torch and ART

    return make_own_trainer(task, config)


def _make_unsloth(task: RlTask, config: RlConfig) -> RlTrainer:
    from deepsearch_rl.train.art.unsloth import make_unsloth_trainer  # noqa: PLC0415 - imports trl

    return make_unsloth_trainer(task, config)


def in_our_loop(make_trainer: MakeTrainer) -> RlEngine:
    """Return the engine of a trainer that the project's own loop steps."""

    def train(task: RlTask, config: RlConfig, output: Path) -> None:
        from deepsearch_rl.train.rl.loop import train_policy  # noqa: PLC0415 - imports transformers

        train_policy(task, config, make_trainer(task, config), output)

    return train


def _art(backend: BackendConfig) -> RlEngine:
    if backend.service == "unsloth":
        require_gpu("rl with service: unsloth", packages=["unsloth", "bitsandbytes", "trl"])
        from deepsearch_rl.train.art.runtime import require_runtime  # noqa: PLC0415 - for this service alone

        require_runtime()
        return in_our_loop(_make_unsloth)

    if backend.device == "cuda":
        require_gpu("rl with device: cuda")
    return in_our_loop(_make_own)


def _verl(backend: BackendConfig) -> RlEngine:
    python = backend.verl.python if backend.verl else ""
    if not Path(python).exists():
        raise UnavailableError(
            f"rl.backend.verl.python is {python!r}, and there is no such program: make veRL's "
            "environment from profiles/gpu/requirements/verl.txt (profiles/gpu/README.md), or name "
            "another one."
        )

    def train(task: RlTask, config: RlConfig, output: Path) -> None:
        from deepsearch_rl.train.verl.engine import train_with_verl  # noqa: PLC0415 - imports transformers

        train_with_verl(task, config, output)

    return train


ENGINES: Mapping[str, Callable[[BackendConfig], RlEngine]] = {"art": _art, "verl": _verl}


def open_engine(backend: BackendConfig) -> RlEngine:
    """Return the engine, after a check, before anything is read or started, that it can run here.

    What trains is imported when the engine is called: a watching process asks only whether it could
    be. Raises UnknownNameError for an unknown engine, UnavailableError if hardware or packages are
    missing.
    """
    return look_up("rl.backend.engine", backend.engine, ENGINES)(backend)
