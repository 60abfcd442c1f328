"""RL engines by the name that ``rl.backend`` gives them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deepsearch_rl.errors import look_up
from deepsearch_rl.training.backends.art.cpu import make_cpu_trainer
from deepsearch_rl.training.backends.art.unsloth import make_unsloth_trainer, require_unsloth
from deepsearch_rl.training.rl.config import RlConfig
from deepsearch_rl.training.rl.trainer import RlTask, RlTrainer


@dataclass(frozen=True, slots=True)
class Engine:
    """How to make the trainer of a run; ``require`` raises UnavailableError if this machine cannot run it."""

    make: Callable[[RlTask, RlConfig], RlTrainer]
    require: Callable[[], None] = lambda: None


ENGINES: Mapping[str, Engine] = {
    "cpu": Engine(make_cpu_trainer),
    "unsloth": Engine(make_unsloth_trainer, require_unsloth),
}


def open_engine(name: str) -> Engine:
    """Return an engine after checking, before anything is read or started, that it can run here.

    Raises:
        UnknownNameError: there is no engine of this name.
        UnavailableError: it needs hardware or packages that are missing.
    """
    engine = look_up("rl.backend", name, ENGINES)
    engine.require()
    return engine
