"""Programs that a command runs to their end, and what is said where one fails."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deepsearch_rl.core.errors import CommandError
from deepsearch_rl.core.redaction import environment_secrets, redact


def run_program(name: str, command: Sequence[str], text: str = "", folder: Path | str = ".") -> str:
    """Run a program that reads ``text``, and return what it prints.

    Raise CommandError where it fails: with DVC's first error, or else with all that it wrote to
    stderr, secrets masked, or with how it ended where it wrote nothing. ``name`` is what an error
    calls it.
    """
    # DVC wraps its lines
    wide = {**os.environ, "COLUMNS": "999"}
    result = subprocess.run(
        command, cwd=folder, env=wide, input=text, capture_output=True, text=True, check=False
    )
    if result.returncode:
        problem = _said(result.stderr) or f"{name} {_ending(result.returncode)}"
        raise CommandError(redact(problem, environment_secrets(os.environ)))

    return result.stdout


def _said(stderr: str) -> str:
    """Return DVC's first error, or everything that a program said."""
    for line in stderr.splitlines():
        if line.startswith("ERROR: "):
            return line.removeprefix("ERROR: ")

    return stderr.strip().removeprefix("error: ")


def _ending(status: int) -> str:
    """Return how a program ended that said nothing."""
    if -status not in {*signal.Signals}:
        return f"ended with exit status {status} and said nothing"

    is_kill = -status == signal.SIGKILL
    hint = ", as the system does when memory is full (`dmesg` shows that)" if is_kill else ""
    return f"was killed by {signal.Signals(-status).name}{hint}"
