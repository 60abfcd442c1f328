"""The CPU model server as a process of its own: it serves one model folder on an inherited socket.

python -m deepsearch_rl.serve.chat_process DESCRIPTOR FOLDER NAME SETTINGS [ADAPTER...]

SETTINGS is the section ``serving.cpu`` as JSON.
"""

import socket
import sys
from pathlib import Path

from deepsearch_rl.serve.chat_server import serve_folder
from deepsearch_rl.serve.launch import CpuConfig


def main() -> None:
    """Serve a model folder, with an adapter added to its weights, until told to stop."""
    descriptor, folder, name, settings, *adapters = sys.argv[1:]
    config = CpuConfig.model_validate_json(settings)
    with socket.socket(fileno=int(descriptor)) as listener:
        serve_folder(listener, Path(folder), name, config, [*map(Path, adapters)])


if __name__ == "__main__":
    main()
