"""The process of the CPU model server, which :mod:`deepsearch_rl.serve.launch` starts.

    python -m deepsearch_rl.serve.chat_process SOCKET FOLDER NAME SLOTS CONTEXT_TOKENS [ADAPTER]

Half of the time until it answers is the loading of libraries, and theirs load further ones where
they are installed. Those that this process never calls are left out here.
"""

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from deepsearch_rl.core.left_out import (
    UNUSED,
    leave_out,
    leave_out_package_scan,
    loading_libraries,
)

# Further ones beside those of every process that loads transformers
UNUSED_HERE = (
    # transformers, for images in conversations
    "PIL",
    # fastapi, for addresses in requests
    "email_validator",
    # uvicorn, to reload changed sources
    "watchfiles",
)


def leave_out_compiler() -> None:
    """Have this process load neither torch's compiler nor its sharded tensors.

    transformers loads both wherever torch is. The process compiles no model and has whole tensors,
    so what marks functions for the compiler leaves them as they are.
    """
    _stand_in("torch._dynamo", allow_in_graph=_unmarked, disable=_unmarked)
    _stand_in("torch._dynamo._trace_wrapped_higher_order_op", TransformGetItemToIndex=_refuse)
    _stand_in("torch.distributed.tensor")


def _stand_in(name: str, **functions: Callable[..., Any]) -> None:
    """Put a module with these functions alone in the place of a library's."""
    module = ModuleType(name)
    for function_name, function in functions.items():
        setattr(module, function_name, function)
    sys.modules[name] = module


def _unmarked(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Callable[..., Any]:
    """Return a function as it is, also as a decorator with options."""
    return _unmarked if function is None else function


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(f"the CPU model server is without torch's compiler ({__file__})")


def main() -> None:
    """Serve a model folder, with an adapter added to its weights, on the inherited socket until told to stop."""
    descriptor, folder, name, slots, context_tokens, *adapters = sys.argv[1:]
    with loading_libraries():
        leave_out((*UNUSED, *UNUSED_HERE))
        leave_out_package_scan()
        # PEFT asks of every weight whether it is sharded
        if not adapters:
            leave_out_compiler()

        from deepsearch_rl.serve.chat_server import serve_folder  # noqa: PLC0415 - loads those libraries

    with socket.socket(fileno=int(descriptor)) as listener:
        serve_folder(
            listener, Path(folder), name, int(slots), int(context_tokens), [*map(Path, adapters)]
        )


if __name__ == "__main__":
    main()
