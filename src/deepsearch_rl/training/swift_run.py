"""Running ms-swift's commands: output kept in a log, failure told in the program's own last lines."""

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from deepsearch_rl.errors import CommandError
from deepsearch_rl.serving.processes import die_with_parent, stop

LAST_LINES = 12


def run_swift(command: Sequence[str], log_path: Path, on_line: Callable[[str], None]) -> None:
    """Run ``swift <subcommand> ...`` to its end.

    The ``swift`` launcher imports torch only to start ``swift.cli.<subcommand>`` in a second process; that module is
    run directly, which is the same call 3 s earlier.

    Args:
        command: ``["swift", subcommand, *flags]``.
        log_path: every line of output is appended to it.
        on_line: called with every line (a carriage return ends one too, so progress bars arrive as lines).

    Raises:
        CommandError: the exit code is not 0.
    """
    program, subcommand, *flags = command
    log_path.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", f"{program}.cli.{subcommand}", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    last: deque[str] = deque(maxlen=LAST_LINES)
    try:
        with log_path.open("a", encoding="utf-8") as log:
            for line in process.stdout or ():
                log.write(line)
                last.append(line)
                on_line(line)
        code = process.wait()
    finally:
        stop(process)
    if code != 0:
        tail = "".join(last).strip()
        raise CommandError(
            f"`{program} {subcommand}` ended with exit code {code}; its output is in {log_path}, the end is:\n{tail}"
        )
