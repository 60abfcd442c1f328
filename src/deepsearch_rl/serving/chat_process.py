"""The process of the CPU model server, which :mod:`deepsearch_rl.serving.launch` starts.

    python -m deepsearch_rl.serving.chat_process SOCKET FOLDER NAME SLOTS CONTEXT_TOKENS [ADAPTER]

Half of the time until it answers is the loading of libraries, and theirs load further ones where
they are installed. Those that this process never calls are left out here.
"""

import socket
import sys
from pathlib import Path

# Who loads it and for what; each takes a module that is None for one that is not installed.
UNUSED = (
    # transformers, for assisted generation; pandas and half of SciPy come with it
    "sklearn",
    # accelerate, for SageMaker
    "boto3",
    # torch.fx, for drawings of graphs
    "pydot",
    # httpcore, beside asyncio
    "trio",
    # uvicorn, to reload changed sources
    "watchfiles",
)


def main() -> None:
    """Serve a model folder, with an adapter added to its weights, on the inherited socket until told to stop."""
    descriptor, folder, name, slots, context_tokens, *adapters = sys.argv[1:]
    for module in UNUSED:
        # Python's own way to say that a module cannot be imported, which typeshed does not know
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]

    from deepsearch_rl.serving.chat_server import serve_folder  # noqa: PLC0415 - loads those libraries

    with socket.socket(fileno=int(descriptor)) as listener:
        serve_folder(
            listener, Path(folder), name, int(slots), int(context_tokens), [*map(Path, adapters)]
        )


if __name__ == "__main__":
    main()
