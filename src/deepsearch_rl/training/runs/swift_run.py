"""Running ms-swift's commands: output kept in a log, a failure told in the program's own last lines."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deepsearch_rl.core.errors import CommandError
from deepsearch_rl.core.processes import ProcessGuard, stream_lines


def swift_command(subcommand: str, flags: Mapping[str, object]) -> list[str]:
    """Return the call ``swift <subcommand> --name value ...`` with booleans as ms-swift writes them."""
    values = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in flags.items()
    }
    return [
        "swift",
        subcommand,
        *(part for name, value in values.items() for part in (f"--{name}", value)),
    ]


def run_swift(
    command: Sequence[str], log_path: Path, on_line: Callable[[str], object] = lambda _: None
) -> None:
    """Run ``["swift", subcommand, *flags]`` to its end; raise CommandError for an exit code other than 0.

    ``swift.cli.<subcommand>`` is run directly, 3 s sooner than through the ``swift`` launcher,
    unless NPROC_PER_NODE or NNODES is set: the launcher then starts torchrun, with a process per
    GPU. Every line of output that is not blank is appended to the log and given to ``on_line``; a
    carriage return ends one too.
    """
    program, subcommand, *flags = command
    module = (
        ["main", subcommand] if {"NPROC_PER_NODE", "NNODES"} & os.environ.keys() else [subcommand]
    )
    log_path.parent.mkdir(parents=True, exist_ok=True)

    with ProcessGuard() as guard, log_path.open("a", encoding="utf-8") as log:
        process = guard.start(
            [sys.executable, "-u", "-m", f"{program}.cli.{module[0]}", *module[1:], *flags]
        )
        tail = "\n".join(
            stream_lines(process, lambda line: (log.write(f"{line}\n"), on_line(line)))
        )

    if process.returncode != 0:
        raise CommandError(
            f"`{program} {subcommand}` ended with exit code {process.returncode}; its output is in {log_path}, "
            f"the end is:\n{tail}"
        )
