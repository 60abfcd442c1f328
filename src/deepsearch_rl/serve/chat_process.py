"""The CPU model server as a process of its own: it serves one model folder on an inherited socket.

python -m deepsearch_rl.serve.chat_process DESCRIPTOR FOLDER NAME SLOTS CONTEXT_TOKENS [ADAPTER...]
"""

import socket
import sys
from pathlib import Path

from deepsearch_rl.serve.chat_server import serve_folder


def main() -> None:
    """Serve a model folder, with an adapter added to its weights, until told to stop."""
    descriptor, folder, name, slots, context_tokens, *adapters = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as listener:
        serve_folder(
            listener, Path(folder), name, int(slots), int(context_tokens), [*map(Path, adapters)]
        )


if __name__ == "__main__":
    main()
