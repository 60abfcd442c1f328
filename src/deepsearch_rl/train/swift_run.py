"""Running ms-swift's commands: output kept in a log, a failure told in the program's own last lines."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deepsearch_rl.core.errors import CommandError
from deepsearch_rl.core.processes import ProcessGuard, stream_lines


def swift_command(subcommand: str, flags: Mapping[str, object]) -> list[str]:
    """Return the call ``swift <subcommand> --name value ...`` with booleans as ms-swift writes them."""
    command = ["swift", subcommand]
    for name, value in flags.items():
        text = str(value)
        command += [f"--{name}", text.lower() if isinstance(value, bool) else text]

    return command


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
    is_distributed = {"NPROC_PER_NODE", "NNODES"} & os.environ.keys()
    module = ["main", subcommand] if is_distributed else [subcommand]
    log_path.parent.mkdir(parents=True, exist_ok=True)

    with ProcessGuard() as guard, log_path.open("a", encoding="utf-8") as log:
        # -u: a step is shown when it is done, not when a buffer is full
        python = [sys.executable, "-u", "-m"]
        process = guard.start([*python, f"{program}.cli.{module[0]}", *module[1:], *flags])

        def keep(line: str) -> None:
            log.write(f"{line}\n")
            on_line(line)

        tail = "\n".join(stream_lines(process, keep))

    if process.returncode != 0:
        raise CommandError(
            f"`{program} {subcommand}` ended with exit code {process.returncode}; its output is in "
            f"{log_path}, the end is:\n"
            f"{tail}"
        )
